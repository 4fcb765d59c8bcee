"""`paced`: volume / T per flow, T the largest NIC load per iteration; the rest by max-min."""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import rule
from headrace.policies.flow._base import FlowPolicy
from headrace.policies.flow.filling import fill_flows, port_capacities


@rule
def paced_rates(flows, nic_out, nic_in, pace_s, rates):
    """Base rates, scaled down where volumes exceed their mean, then progressive filling."""
    num_machines = len(nic_out)
    asked = np.zeros(2 * num_machines)
    for i in range(len(flows)):
        base = flows[i]["volume"] / pace_s
        asked[flows[i]["src"]] += base
        asked[num_machines + flows[i]["dst"]] += base
    left = port_capacities(nic_out, nic_in)
    capacity = left.copy()
    for i in range(len(flows)):
        a, b = flows[i]["src"], num_machines + flows[i]["dst"]
        scale = 1.0
        if asked[a] > capacity[a]:
            scale = capacity[a] / asked[a]
        if asked[b] > capacity[b]:
            scale = min(scale, capacity[b] / asked[b])
        rates[i] = scale * flows[i]["volume"] / pace_s
        left[a] = max(0.0, left[a] - rates[i])
        left[b] = max(0.0, left[b] - rates[i])
    everyone = np.ones(len(flows), np.bool_)
    fill_flows(flows, everyone, np.ones(len(flows)), left, rates)


PACED = FlowPolicy(
    "paced", 3, "volume / largest NIC load, remaining bandwidth by max-min", paced_rates
)
