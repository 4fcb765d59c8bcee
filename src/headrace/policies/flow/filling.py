"""Progressive filling: raise all rates together and freeze flows at full ports.

Ports 0..M-1 are the senders' NICs, M..2M-1 the receivers'.
"""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import part_of_rule


@part_of_rule
def fill_flows(flows, chosen, weight, left, rates):
    """Weighted max-min among the chosen flows, added to their current rates.

    Updates `rates` and `left`, the remaining capacity per port. Weights must be positive.
    """
    num_ports = len(left)
    num_machines = num_ports // 2
    first = np.zeros(num_ports + 1, np.int64)
    for i in range(len(flows)):
        if chosen[i]:
            first[flows[i]["src"] + 1] += 1
            first[num_machines + flows[i]["dst"] + 1] += 1
    for p in range(num_ports):
        first[p + 1] += first[p]
    count = np.zeros(num_ports, np.int64)
    load = np.zeros(num_ports)
    members = np.empty(first[num_ports], np.int64)
    open_ = chosen.copy()
    for i in range(len(flows)):
        if chosen[i]:
            for p in (np.int64(flows[i]["src"]), np.int64(num_machines + flows[i]["dst"])):
                members[first[p] + count[p]] = i
                count[p] += 1
                load[p] += weight[i]
    while True:
        level = np.inf
        full = -1
        for p in range(num_ports):
            if count[p] > 0 and left[p] < level * load[p]:
                level = left[p] / load[p]
                full = p
        if full < 0:
            break
        # With very different weights subtraction loses all precision: recompute the sum.
        exact = 0.0
        for k in range(first[full], first[full + 1]):
            if open_[members[k]]:
                exact += weight[members[k]]
        if exact < load[full]:
            load[full] = exact
            continue
        level = left[full] / exact
        for k in range(first[full], first[full + 1]):
            i = members[k]
            if open_[i]:
                open_[i] = False
                given = level * weight[i]
                rates[i] += given
                a, b = flows[i]["src"], num_machines + flows[i]["dst"]
                other = b if a == full else a
                left[other] = max(0.0, left[other] - given)
                # Rounded up, so that a port is checked too early rather than too late.
                load[other] += 4e-16 * load[other] - weight[i]
                count[other] -= 1
        left[full] = 0.0
        count[full] = 0


@part_of_rule
def port_capacities(nic_out, nic_in):
    """Capacities of all ports, senders first."""
    num_machines = len(nic_out)
    capacities = np.empty(2 * num_machines)
    for m in range(num_machines):
        capacities[m] = nic_out[m]
        capacities[num_machines + m] = nic_in[m]
    return capacities
