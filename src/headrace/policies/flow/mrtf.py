"""`mrtf`, `mrtf-exclusive`: minimum remaining time first, two variants of the paper's baseline."""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import rule
from headrace.policies.flow._base import FlowPolicy
from headrace.policies.flow.filling import port_capacities


@rule
def _by_remaining_time(flows, nic_out, nic_in):
    remaining_s = np.empty(len(flows))
    for i in range(len(flows)):
        remaining_s[i] = flows[i]["remaining"] / min(
            nic_out[flows[i]["src"]], nic_in[flows[i]["dst"]]
        )
    # Flows are sorted by edge, so a stable sort breaks ties by edge.
    return np.argsort(remaining_s, kind="mergesort")


@rule
def mrtf_rates(flows, nic_out, nic_in, pace_s, rates):
    """In order of remaining time, each flow gets all remaining bandwidth of its two NICs."""
    left = port_capacities(nic_out, nic_in)
    for i in _by_remaining_time(flows, nic_out, nic_in):
        a, b = flows[i]["src"], len(nic_out) + flows[i]["dst"]
        rates[i] = min(left[a], left[b])
        left[a] -= rates[i]
        left[b] -= rates[i]


@rule
def mrtf_exclusive_rates(flows, nic_out, nic_in, pace_s, rates):
    """In order of remaining time, each flow gets both its NICs exclusively or nothing."""
    busy = np.zeros(2 * len(nic_out), np.bool_)
    for i in _by_remaining_time(flows, nic_out, nic_in):
        a, b = flows[i]["src"], len(nic_out) + flows[i]["dst"]
        rates[i] = 0.0
        if not busy[a] and not busy[b]:
            rates[i] = min(nic_out[flows[i]["src"]], nic_in[flows[i]["dst"]])
            busy[a] = True
            busy[b] = True


MRTF = FlowPolicy("mrtf", 4, "minimum remaining time first, work-conserving", mrtf_rates)
MRTF_EXCLUSIVE = FlowPolicy(
    "mrtf-exclusive", 5, "minimum remaining time first, one flow per NIC", mrtf_exclusive_rates
)
