"""`fifo`: every sender serves only its oldest flow, like a plain transmit queue."""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import rule
from headrace.policies.flow._base import FlowPolicy
from headrace.policies.flow.filling import fill_flows, port_capacities


@rule
def fifo_rates(flows, nic_out, nic_in, pace_s, rates):
    """Max-min among the head flows of all transmit queues."""
    rates[:] = 0.0
    head = np.full(len(nic_out), -1)
    for i in range(len(flows)):
        # Flows are sorted by edge, so ties go to the first edge.
        j = head[flows[i]["src"]]
        if j < 0 or flows[i]["opened"] < flows[j]["opened"]:
            head[flows[i]["src"]] = i
    chosen = np.zeros(len(flows), np.bool_)
    for i in head:
        if i >= 0:
            chosen[i] = True
    fill_flows(flows, chosen, np.ones(len(flows)), port_capacities(nic_out, nic_in), rates)


FIFO = FlowPolicy("fifo", 7, "one flow at a time per sender, oldest first", fifo_rates)
