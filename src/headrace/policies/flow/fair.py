"""Fair shares: concurrent flows of one iteration finish together.

Used by traffic control to limit data flows; plans cannot select it.
"""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import rule
from headrace.policies.flow._base import FlowPolicy
from headrace.policies.flow.filling import fill_flows, port_capacities


@rule
def fair_rates(flows, nic_out, nic_in, pace_s, rates):
    """Progressive filling weighted by flow volumes."""
    rates[:] = 0.0
    weight = np.empty(len(flows))
    for i in range(len(flows)):
        weight[i] = flows[i]["volume"]
    everyone = np.ones(len(flows), np.bool_)
    fill_flows(flows, everyone, weight, port_capacities(nic_out, nic_in), rates)


FAIR = FlowPolicy("fair", -1, "max-min fairness in proportion to volumes", fair_rates)
