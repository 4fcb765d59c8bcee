"""`maxmin`: max-min fairness over all NICs, the limit of fair queueing."""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import rule
from headrace.policies.flow._base import FlowPolicy
from headrace.policies.flow.filling import fill_flows, port_capacities


@rule
def maxmin_rates(flows, nic_out, nic_in, pace_s, rates):
    """Progressive filling with equal weights."""
    rates[:] = 0.0
    everyone = np.ones(len(flows), np.bool_)
    fill_flows(flows, everyone, np.ones(len(flows)), port_capacities(nic_out, nic_in), rates)


MAXMIN = FlowPolicy("maxmin", 1, "max-min fairness over all NICs", maxmin_rates)
