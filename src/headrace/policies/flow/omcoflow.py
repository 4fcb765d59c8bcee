"""`omcoflow`: flows to one task form a coflow; shorter flows get higher rates.

DGTP, section VI-B: rates are inversely proportional to predicted finish times.
"""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import rule
from headrace.policies.flow._base import FlowPolicy
from headrace.policies.flow.filling import fill_flows, port_capacities


@rule
def omcoflow_rates(flows, nic_out, nic_in, pace_s, rates):
    """Weighted max-min; the weight is 1 / finish time of the flow with its coflow alone."""
    num_flows, num_machines = len(flows), len(nic_out)
    rates[:] = 0.0
    key = np.empty(num_flows, np.int64)
    for i in range(num_flows):
        key[i] = (np.int64(flows[i]["task"]) << 32) + flows[i]["iteration"]
    order = np.argsort(key, kind="mergesort")
    weight = np.empty(num_flows)
    out_degree = np.zeros(num_machines)
    in_degree = np.zeros(num_machines)
    start = 0
    while start < num_flows:
        end = start
        while end < num_flows and key[order[end]] == key[order[start]]:
            out_degree[flows[order[end]]["src"]] += 1
            in_degree[flows[order[end]]["dst"]] += 1
            end += 1
        for i in order[start:end]:
            a, b = flows[i]["src"], flows[i]["dst"]
            alone = min(nic_out[a] / out_degree[a], nic_in[b] / in_degree[b])
            weight[i] = alone / flows[i]["remaining"]
        for i in order[start:end]:
            out_degree[flows[i]["src"]] = 0.0
            in_degree[flows[i]["dst"]] = 0.0
        start = end
    everyone = np.ones(num_flows, np.bool_)
    fill_flows(flows, everyone, weight, port_capacities(nic_out, nic_in), rates)


OMCOFLOW = FlowPolicy(
    "omcoflow", 6, "one coflow per receiving task, shorter flows faster", omcoflow_rates
)
