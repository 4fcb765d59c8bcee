"""Rates of live flows, computed with the simulator's policies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.core.tasks import EdgeKind
from headrace.policies.flow import Flow, FlowPolicy
from headrace.runtime.traffic.class_shares import DEFAULT_PRIO

UNSHAPED = frozenset({"maxmin"})
"""Policies that the kernel's queueing approximates without shaping."""

BY_KIND = frozenset({"priority"})
"""Policies with HTB priorities that depend only on the kind of a flow.

Within a priority, the model has max-min rates. TCP alone does not reach them where flows compete at
receivers: a flow through two busy NICs gets the smaller share of both. So each flow is limited to
its fair share of those NICs, by volume but no less than an equal one, which changes rarely.
"""

BY_ITERATION = frozenset({"omcoflow"})
"""Policies that use the iteration of a flow."""

DATA_PRIOS = {EdgeKind.GRAPH: 2, EdgeKind.BATCH: 1}
"""Priorities of data flows under policies by kind; all other flows have priority 0."""


def prio_of(policy: str, kind: EdgeKind) -> int:
    """Priority for borrowing; fixed, as the kernel ignores changes while packets are queued."""
    return DATA_PRIOS.get(kind, 0) if policy in BY_KIND else DEFAULT_PRIO


class Rates:
    """Computes rates with a policy; `pace_s` is the plan's largest NIC load per iteration."""

    def __init__(
        self,
        policy: FlowPolicy,
        nic_out_bytes_per_s: np.ndarray,
        nic_in_bytes_per_s: np.ndarray,
        pace_s: float,
    ) -> None:
        self._policy, self._pace_s = policy, max(pace_s, 1e-9)
        self._nic_out, self._nic_in = nic_out_bytes_per_s, nic_in_bytes_per_s

    def of(self, flows: Sequence[Flow]) -> dict[int, float]:
        """Bytes per second of open flows, by number."""
        if not flows:
            return {}
        rates = self._policy.rates(flows, self._nic_out, self._nic_in, self._pace_s)
        return {flow.edge: float(rate) for flow, rate in zip(flows, rates, strict=True)}
