"""`oes`: every NIC is shared evenly, a flow gets its smaller share (DGTP, Alg. 1)."""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import rule
from headrace.policies.flow._base import FlowPolicy


@rule
def oes_rates(flows, nic_out, nic_in, pace_s, rates):
    """Alg. 1, line 21, with the degrees of eqs 19 and 20."""
    out_degree = np.zeros(len(nic_out))
    in_degree = np.zeros(len(nic_in))
    for i in range(len(flows)):
        out_degree[flows[i]["src"]] += 1
        in_degree[flows[i]["dst"]] += 1
    for i in range(len(flows)):
        a, b = flows[i]["src"], flows[i]["dst"]
        rates[i] = min(nic_out[a] / out_degree[a], nic_in[b] / in_degree[b])


OES = FlowPolicy("oes", 0, "even share of the bottleneck NIC (DGTP Alg. 1)", oes_rates)
