"""Step, gradient exchange and batch arrival times of trainers, from a trace."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from headrace.core.job import Role
from headrace.core.report import Split
from headrace.core.trace import Trace

_NUMBER = re.compile(r"\D*(\d+)")


@dataclass(frozen=True)
class Timelines:
    """Times by trainer (row) and iteration (column); `nan` where nothing was recorded.

    Attributes:
        names: Names of the trainers.
        machines: Machine index of each trainer.
        start_s: Start of the step.
        end_s: End of the step.
        agreed_s: End of the gradient exchange; the end of the step without one.
        ready_s: Arrival of the last sub-batch.
    """

    names: tuple[str, ...]
    machines: tuple[int, ...]
    start_s: np.ndarray
    end_s: np.ndarray
    agreed_s: np.ndarray
    ready_s: np.ndarray

    @property
    def num_iterations(self) -> int:
        """Number of iterations that any trainer has started."""
        return int(self.start_s.shape[1])

    @property
    def ends_s(self) -> np.ndarray:
        """End of each iteration over all trainers; `nan` unless all finished it."""
        if not len(self.names):
            return np.empty(0)
        ends: np.ndarray = self.end_s.max(axis=0)
        return ends

    def gaps_s(self) -> tuple[np.ndarray, np.ndarray]:
        """Time before every step spent waiting for its batch, and on anything else."""
        before = np.full_like(self.start_s, np.nan)
        before[:, 1:] = self.agreed_s[:, :-1]
        ready = np.fmin(np.fmax(np.nan_to_num(self.ready_s, nan=-np.inf), before), self.start_s)
        return ready - before, self.start_s - ready

    def split(self, trainer: int, counted: np.ndarray) -> Split | None:
        """Mean time components of a trainer (row) over the counted iterations."""
        waits, others = self.gaps_s()
        end_s, agreed_s = self.end_s[trainer], self.agreed_s[trainer]
        all_s = np.clip(self.ends_s, end_s, agreed_s)
        parts = np.stack(
            [
                end_s - self.start_s[trainer],
                all_s - end_s,
                agreed_s - all_s,
                waits[trainer],
                others[trainer],
            ]
        )[:, counted]
        parts = parts[:, ~np.isnan(parts).any(axis=0)]
        if not parts.shape[1]:
            return None
        compute, peers, exchange, wait, other = np.maximum(parts.mean(axis=1), 0.0).tolist()
        return Split(
            compute_s=compute, peers_s=peers, exchange_s=exchange, wait_s=wait, other_s=other
        )


def timelines_of(trace: Trace) -> Timelines:
    """Find every trainer's steps in a trace of a simulation or run."""
    roles = np.array(trace.task_roles)
    trainers = np.flatnonzero(roles == Role.TRAINER)
    rows, flows = trace.executions, trace.flows
    is_step = roles[rows.task] == Role.TRAINER
    num = int(rows.iteration[is_step].max(initial=-1)) + 1
    owner = _owners(trace)
    shape = (len(trainers), num)
    start_s, end_s = np.full(shape, np.nan), np.full(shape, np.nan)
    steps = np.flatnonzero(is_step & (rows.iteration < num))
    start_s[owner[rows.task[steps]], rows.iteration[steps]] = rows.start_s[steps]
    end_s[owner[rows.task[steps]], rows.iteration[steps]] = rows.end_s[steps]
    # A full-graph job's step goes on with layers.
    layers = np.flatnonzero((roles[rows.task] == Role.LAYER) & (rows.iteration < num))
    _latest(end_s, owner[rows.task[layers]], rows.iteration[layers], rows.end_s[layers])

    agreed_s, ready_s = end_s.copy(), np.full(shape, np.nan)
    rings = np.flatnonzero((roles[rows.task] == Role.RING) & (rows.iteration < num))
    _latest(agreed_s, owner[rows.task[rings]], rows.iteration[rings], rows.end_s[rings])
    servers = np.flatnonzero((roles[rows.task] == Role.SERVER) & (rows.iteration < num))
    for trainer in range(len(trainers)):
        here = np.full(len(servers), trainer)
        _latest(agreed_s, here, rows.iteration[servers], rows.end_s[servers])
    made = np.flatnonzero((roles[rows.task] == Role.SAMPLER) & (rows.iteration < num))
    _latest(ready_s, owner[rows.task[made]], rows.iteration[made], rows.end_s[made])

    src, dst = roles[flows.src], roles[flows.dst]
    known = (flows.iteration < num) & ~np.isnan(flows.end_s)
    to_ring = (src == Role.RING) & ((dst == Role.RING) | (dst == Role.TRAINER))
    synced = np.flatnonzero(known & (to_ring | ((src == Role.SERVER) & (dst == Role.TRAINER))))
    _latest(agreed_s, owner[flows.dst[synced]], flows.iteration[synced], flows.end_s[synced])
    fed = np.flatnonzero(known & (src == Role.SAMPLER) & (dst == Role.TRAINER))
    _latest(ready_s, owner[flows.dst[fed]], flows.iteration[fed], flows.end_s[fed])
    # In a run, a step's execution includes work after the exchange, so the two overlap.
    overlap_s = np.maximum(np.nan_to_num(end_s - _exchange_starts(trace, owner, shape)), 0.0)
    agreed_s += overlap_s
    agreed_s[:, :-1] = np.fmin(agreed_s[:, :-1], start_s[:, 1:])
    # An iteration that a trainer did not finish has no exchange.
    agreed_s[np.isnan(end_s)] = np.nan
    return Timelines(
        names=tuple(trace.task_names[task] for task in trainers),
        machines=tuple(int(trace.task_machines[task]) for task in trainers),
        start_s=start_s,
        end_s=end_s,
        agreed_s=agreed_s,
        ready_s=ready_s,
    )


def _exchange_starts(trace: Trace, owner: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Start of the gradient exchange: the ring's barrier, or the first flow to a server."""
    roles, names = np.array(trace.task_roles), np.array(trace.task_names)
    rows, flows = trace.executions, trace.flows
    found = np.full(shape, np.nan)
    known = np.flatnonzero((names[rows.task] == "barrier") & (rows.iteration < shape[1]))
    found[:, rows.iteration[known]] = rows.start_s[known]
    is_sent = np.isin(roles[flows.src], (Role.TRAINER, Role.LAYER))
    is_sent &= roles[flows.dst] == Role.SERVER
    sent = np.flatnonzero(is_sent & (flows.iteration < shape[1]))
    np.fmin.at(found, (owner[flows.src[sent]], flows.iteration[sent]), flows.start_s[sent])
    return found


def _latest(into: np.ndarray, row: np.ndarray, column: np.ndarray, value: np.ndarray) -> None:
    kept = row >= 0
    np.fmax.at(into, (row[kept], column[kept]), value[kept])


def _owners(trace: Trace) -> np.ndarray:
    """Row of the trainer that each task is, feeds, or is a part of; -1 for others."""
    numbers = [int(found[1]) if (found := _NUMBER.match(name)) else -1 for name in trace.task_names]
    row = {
        number: index
        for index, number in enumerate(
            number
            for number, role in zip(numbers, trace.task_roles, strict=True)
            if role == Role.TRAINER
        )
    }
    owned = (Role.TRAINER, Role.SAMPLER, Role.RING, Role.LAYER)
    return np.array(
        [
            row.get(number, -1) if role in owned else -1
            for number, role in zip(numbers, trace.task_roles, strict=True)
        ],
        dtype=np.int64,
    )
