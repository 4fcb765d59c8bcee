"""Flow kinds, and assignment of executions and flows to non-overlapping lanes of a chart."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from headrace.core.job import Role
from headrace.core.trace import Trace

FLOW_KINDS = ("graph", "batch", "gradient", "parameter", "ring", "request", "swap")
"""Payload of a flow: sampled data, a batch, one of three kinds of synchronisation, a request, or
rows of a full-graph job."""

_KIND_OF_ROLES = {
    (Role.STORE, Role.SAMPLER): "graph",
    (Role.SAMPLER, Role.TRAINER): "batch",
    (Role.TRAINER, Role.SERVER): "gradient",
    (Role.SERVER, Role.TRAINER): "parameter",
    (Role.RING, Role.RING): "ring",
    (Role.RING, Role.TRAINER): "ring",
    (Role.LAYER, Role.SERVER): "gradient",
    (Role.TRAINER, Role.LAYER): "swap",
    (Role.LAYER, Role.LAYER): "swap",
    (Role.SAMPLER, Role.STORE): "request",
    (Role.TRAINER, Role.SAMPLER): "request",
}

_WITHIN_TRAINERS = (Role.RING, Role.LAYER)

ROLE_ORDER = tuple(role.value for role in Role)
"""Roles in the order of the data flow."""


def flow_kinds(trace: Trace) -> np.ndarray:
    """Index into `FLOW_KINDS` per flow, from the roles of its endpoints."""
    codes = np.array([ROLE_ORDER.index(role) for role in trace.task_roles], dtype=np.int64)
    kind_of = np.full((len(ROLE_ORDER), len(ROLE_ORDER)), -1, dtype=np.int64)
    for (src, dst), kind in _KIND_OF_ROLES.items():
        kind_of[ROLE_ORDER.index(src), ROLE_ORDER.index(dst)] = FLOW_KINDS.index(kind)
    kinds: np.ndarray = kind_of[codes[trace.flows.src], codes[trace.flows.dst]]
    if (kinds < 0).any():
        flow = int(np.argmax(kinds < 0))
        sender = trace.task_names[trace.flows.src[flow]]
        receiver = trace.task_names[trace.flows.dst[flow]]
        raise ValueError(f"unexpected flow from {sender} to {receiver}")
    return kinds


def flow_ends(trace: Trace) -> np.ndarray:
    """End of every flow in seconds; unfinished flows end with the trace."""
    return np.where(np.isnan(trace.flows.end_s), trace.makespan_s, trace.flows.end_s)


def task_lanes(trace: Trace) -> tuple[np.ndarray, list[str]]:
    """Lane per task, and lane names; all layers or ring steps of a trainer share a lane."""
    names = [
        name.split(".")[0] if role in _WITHIN_TRAINERS else name
        for name, role in zip(trace.task_names, trace.task_roles, strict=True)
    ]
    keys = [
        (int(machine), ROLE_ORDER.index(role), task if role not in _WITHIN_TRAINERS else 0, name)
        for task, (machine, role, name) in enumerate(
            zip(trace.task_machines, trace.task_roles, names, strict=True)
        )
    ]
    lanes = sorted(set(keys), key=lambda key: (*key[:3], _natural(key[3])))
    index = {key: lane for lane, key in enumerate(lanes)}
    return np.array([index[key] for key in keys], dtype=np.int64), [key[3] for key in lanes]


def stack(start_s: np.ndarray, end_s: np.ndarray) -> np.ndarray:
    """Assign intervals, sorted by start, to the fewest lanes without overlap."""
    lanes = np.zeros(len(start_s), dtype=np.int64)
    busy: list[tuple[float, int]] = []
    idle: list[int] = []
    for i, (start, end) in enumerate(zip(start_s.tolist(), end_s.tolist(), strict=True)):
        while busy and busy[0][0] <= start:
            heappush(idle, heappop(busy)[1])
        lane = heappop(idle) if idle else len(busy)
        heappush(busy, (end, lane))
        lanes[i] = lane
    return lanes


def _natural(name: str) -> tuple[int, str]:
    digits = "".join(char for char in name if char.isdigit())
    return (int(digits) if digits else -1, name)
