"""`fifo`: every sender serves its oldest flow only, as a plain transmit queue does."""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import rule
from headrace.policies.flow._base import FlowPolicy
from headrace.policies.flow.filling import fill_flows, port_capacities


@rule
def fifo_rates(flows, nic_out, nic_in, pace_s, rates):
    """The heads of all transmit queues share the receivers by max-min."""
    rates[:] = 0.0
    head = np.full(len(nic_out), -1)
    for i in range(len(flows)):
        # Flows come sorted by edge, so the first of equals is kept.
        j = head[flows[i].src]
        if j < 0 or flows[i].opened < flows[j].opened:
            head[flows[i].src] = i
    chosen = np.zeros(len(flows), np.bool_)
    for i in head:
        if i >= 0:
            chosen[i] = True
    fill_flows(flows, chosen, np.ones(len(flows)), port_capacities(nic_out, nic_in), rates)


FIFO = FlowPolicy("fifo", 7, "each sender one flow at a time, oldest first", fifo_rates)
