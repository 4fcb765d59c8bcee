"""What a policy gives live flows: the same rules that the simulator uses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.core.tasks import EdgeKind
from headrace.policies.flow import FLOW_POLICIES, Flow, FlowPolicy
from headrace.runtime.traffic.shares import DEFAULT_PRIO, Given

UNSHAPED = frozenset({"maxmin"})
"""Policies that the system's own queueing comes close to: nothing is done for them."""

HELD = frozenset({"oes", "fifo", "mrtf-exclusive"})
"""Policies that leave bandwidth unused, and mean it."""

BY_ITERATION = frozenset({"priority", "omcoflow"})
"""Policies that ask which iteration a flow is of."""

_MAXMIN = FLOW_POLICIES["maxmin"]
_PRIOS = {EdgeKind.GRAPH: 2, EdgeKind.BATCH: 1}
_FULL = 0.95
_LESS = 0.8


def prio_of(policy: str, kind: EdgeKind) -> int:
    """Who borrows first; never changes, as the kernel does not heed a change while packets wait."""
    return _PRIOS.get(kind, 0) if policy == "priority" else DEFAULT_PRIO


class Rates:
    """Asks a policy.

    Args:
        policy: The plan's.
        nic_out_bytes_per_s: Of every machine.
        nic_in_bytes_per_s: Of every machine.
        pace_s: The plan's largest NIC load per iteration.
    """

    def __init__(
        self,
        policy: FlowPolicy,
        nic_out_bytes_per_s: np.ndarray,
        nic_in_bytes_per_s: np.ndarray,
        pace_s: float,
    ) -> None:
        self._policy, self._pace_s = policy, max(pace_s, 1e-9)
        self._nic_out, self._nic_in = nic_out_bytes_per_s, nic_in_bytes_per_s

    def of(self, flows: Sequence[Flow]) -> dict[int, Given]:
        """What open flows get, by number."""
        if not flows:
            return {}
        nics = self._nic_out, self._nic_in
        rates = self._policy.rates(flows, *nics, self._pace_s)
        if self._policy.name in HELD:
            held = np.ones(len(flows), dtype=np.bool_)
        else:
            receivers = np.array([flow.dst for flow in flows])
            received = np.bincount(receivers, weights=rates, minlength=len(self._nic_in))
            is_full = received >= _FULL * self._nic_in
            held = is_full[receivers] & (rates < _LESS * _MAXMIN.rates(flows, *nics))
        return {
            flow.edge: Given(float(rate), bool(is_held))
            for flow, rate, is_held in zip(flows, rates, held, strict=True)
        }
