"""What a policy gives live flows: the same rules that the simulator uses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.core.tasks import EdgeKind
from headrace.policies.flow import Flow, FlowPolicy
from headrace.runtime.traffic.class_shares import DEFAULT_PRIO

UNSHAPED = frozenset({"maxmin"})
"""Policies that the system's own queueing comes close to: nothing is done for them."""

BY_KIND = frozenset({"priority"})
"""Policies whose classes are the kernel's: who goes first follows from what a flow carries.

Inside a class the model has max-min shares. TCP alone does not come to them where flows meet at the
cards of receivers: whoever passes two busy cards gets the least of both. So nobody sends more than
a fair share of those cards, which is written down rarely, as it hardly changes.
"""

BY_ITERATION = frozenset({"omcoflow"})
"""Policies that ask which iteration a flow is of."""

DATA_PRIOS = {EdgeKind.GRAPH: 2, EdgeKind.BATCH: 1}
"""Of flows of data under such policies; all others are first."""


def prio_of(policy: str, kind: EdgeKind) -> int:
    """Who borrows first; never changes, as the kernel does not heed a change while packets wait."""
    return DATA_PRIOS.get(kind, 0) if policy in BY_KIND else DEFAULT_PRIO


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

    def of(self, flows: Sequence[Flow]) -> dict[int, float]:
        """Bytes per second of open flows, by number."""
        if not flows:
            return {}
        rates = self._policy.rates(flows, self._nic_out, self._nic_in, self._pace_s)
        return {flow.edge: float(rate) for flow, rate in zip(flows, rates, strict=True)}
