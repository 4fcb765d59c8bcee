"""What a policy gives live flows: the same rules that the simulator uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from headrace.core.tasks import EdgeKind
from headrace.policies.flow import Flow, FlowPolicy
from headrace.runtime.traffic.shares import DEFAULT_PRIO

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

_DATA = (int(EdgeKind.GRAPH), int(EdgeKind.BATCH))

_PRIOS = {EdgeKind.GRAPH: 2, EdgeKind.BATCH: 1}


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

    def of(self, flows: Sequence[Flow]) -> dict[int, float]:
        """Bytes per second of open flows, by number."""
        if not flows:
            return {}
        rates = self._policy.rates(flows, self._nic_out, self._nic_in, self._pace_s)
        return {flow.edge: float(rate) for flow, rate in zip(flows, rates, strict=True)}


def fair_shares(
    flows: Iterable[Flow], nic_out_bytes_per_s: np.ndarray, nic_in_bytes_per_s: np.ndarray
) -> dict[int, float]:
    """What data flows get if all of an iteration's are to end together, by number.

    Max-min shares of all cards, in proportion to what flows carry in an iteration.
    """
    num = len(nic_out_bytes_per_s)
    data = [flow for flow in flows if flow.kind in _DATA]
    left = np.concatenate([nic_out_bytes_per_s, nic_in_bytes_per_s])
    ends = np.array([(flow.src, num + flow.dst) for flow in data], np.int64).reshape(-1, 2)
    weights = np.array([flow.volume for flow in data])
    is_open, rates = np.ones(len(data), bool), np.zeros(len(data))
    while is_open.any():
        loads = np.zeros(2 * num)
        for side in (0, 1):
            np.add.at(loads, ends[is_open, side], weights[is_open])
        levels = np.full(2 * num, np.inf)
        np.divide(left, loads, out=levels, where=loads > 0)
        fullest = int(levels.argmin())
        done = is_open & (ends == fullest).any(axis=1)
        rates[done] = weights[done] * levels[fullest]
        for side in (0, 1):
            np.subtract.at(left, ends[done, side], rates[done])
        left = np.maximum(left, 0.0)
        is_open &= ~done
    return {flow.edge: float(rate) for flow, rate in zip(data, rates, strict=True)}
