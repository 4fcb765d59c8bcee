"""Progressive filling: raise all rates together, freeze those at a full port, go on with the rest.

Ports 0..M-1 are the senders' NICs, M..2M-1 the receivers'.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def fill_flows(flows, chosen, weight, left, rates):
    """Weighted max-min among the chosen flows, on top of the rates they have.

    Args:
        flows: Array of `FLOW_DTYPE`.
        chosen: Which flows take part.
        weight: Weight per flow; positive.
        left: Capacity left per port; reduced by what is given.
        rates: Rate per flow; raised by what is given.
    """
    num_ports = len(left)
    num_machines = num_ports // 2
    load = np.empty(num_ports)
    open_ = chosen.copy()
    while True:
        # Summed anew in every round: weights may differ so much that subtracting leaves only noise.
        load[:] = 0.0
        for i in range(len(flows)):
            if open_[i]:
                load[flows[i].src] += weight[i]
                load[num_machines + flows[i].dst] += weight[i]
        level = np.inf
        full = -1
        for p in range(num_ports):
            if load[p] > 0.0 and left[p] < level * load[p]:
                level = left[p] / load[p]
                full = p
        if full < 0:
            break
        for i in range(len(flows)):
            a, b = flows[i].src, num_machines + flows[i].dst
            if open_[i] and (a == full or b == full):
                open_[i] = False
                given = level * weight[i]
                rates[i] += given
                other = b if a == full else a
                left[other] = max(0.0, left[other] - given)
        left[full] = 0.0


@njit(cache=True)
def port_capacities(nic_out, nic_in):
    """Capacities of all ports in one array."""
    return np.concatenate((nic_out, nic_in))
