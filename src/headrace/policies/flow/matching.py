"""`matching`: coflows in the order of `priority`, each decomposed into matchings at line rate.

The load of a port is its remaining bytes over its bandwidth. No schedule of a coflow is shorter
than the largest load. The busiest ports are tight: each must send or receive at line rate until
the end. Rates cover all tight ports, and hold until a flow ends or another port becomes tight, so
that the coflow ends at the bound (Birkhoff's theorem). With equal bandwidths, the flows with a rate
form a matching, as in Hermod, section 5.3.2, Algorithm 3; covering tight ports replaces its maximum
weight, which can miss the bound. With unequal bandwidths, a port serves several slower ones.
"""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import part_of_rule, rule
from headrace.policies.flow._base import FlowPolicy
from headrace.policies.flow.filling import port_capacities
from headrace.policies.flow.priority import priority_class

_NONE = 1 << 62
_TIGHT = 1.0 - 1e-9
"""Loads within this factor of the largest are equal: they differ by rounding."""
_NOTHING = 1e-12
"""Part of a port's bandwidth that is a rounding error."""


@part_of_rule
def _group_by_port(flows, chosen, num_ports):
    """Chosen flows by port, in order: offsets per port, and the flows."""
    num_machines = num_ports // 2
    first = np.zeros(num_ports + 1, np.int64)
    for i in range(len(flows)):
        if chosen[i]:
            first[flows[i]["src"] + 1] += 1
            first[num_machines + flows[i]["dst"] + 1] += 1
    for p in range(num_ports):
        first[p + 1] += first[p]
    place = first[:num_ports].copy()
    members = np.empty(first[num_ports], np.int64)
    for i in range(len(flows)):
        if chosen[i]:
            for p in (np.int64(flows[i]["src"]), np.int64(num_machines + flows[i]["dst"])):
                members[place[p]] = i
                place[p] += 1
    return first, members


@part_of_rule
def _raise_port(flows, first, members, start, may_lose, capacity, left, rates):
    """Raise the rates at a port by a shortest alternating path; return whether one exists.

    The path raises one flow and lowers the next in turn. It ends at a port of the other side with
    bandwidth left, or takes the rate of a port of the same side that may lose.
    """
    num_ports = len(left)
    num_machines = num_ports // 2
    via = np.full(num_ports, -1)
    before = np.full(num_ports, -1)
    queue = np.empty(num_ports, np.int64)
    queue[0] = start
    head, tail, end = 0, 1, -1
    before[start] = start
    while head < tail and end < 0:
        p = queue[head]
        head += 1
        is_own_side = (p < num_machines) == (start < num_machines)
        for k in range(first[p], first[p + 1]):
            i = members[k]
            a, b = np.int64(flows[i]["src"]), np.int64(num_machines + flows[i]["dst"])
            q = b if p == a else a
            if before[q] >= 0:
                continue
            if not is_own_side and rates[i] <= _NOTHING * min(capacity[a], capacity[b]):
                continue
            before[q] = p
            via[q] = i
            queue[tail] = q
            tail += 1
            if (is_own_side and left[q] > _NOTHING * capacity[q]) or (
                not is_own_side and may_lose[q]
            ):
                end = q
                break
    if end < 0:
        return False
    ends_free = (end < num_machines) != (start < num_machines)
    amount = min(left[start], left[end]) if ends_free else left[start]
    p, raised = end, ends_free
    while p != start:
        if not raised:
            amount = min(amount, rates[via[p]])
        p, raised = before[p], not raised
    left[start] -= amount
    left[end] += -amount if ends_free else amount
    p, raised = end, ends_free
    while p != start:
        rates[via[p]] += amount if raised else -amount
        p, raised = before[p], not raised
    return True


@part_of_rule
def _match(flows, chosen, capacity, left, rates):
    """Rates of one coflow on the bandwidth left; return the seconds until another port is tight."""
    num_ports = len(left)
    num_machines = num_ports // 2
    first, members = _group_by_port(flows, chosen, num_ports)
    load_s = np.zeros(num_ports)
    for p in range(num_ports):
        for k in range(first[p], first[p + 1]):
            load_s[p] += flows[members[k]]["remaining"] / capacity[p]
    most_s = load_s.max()
    tight = load_s >= _TIGHT * most_s
    none_may_lose = np.zeros(num_ports, np.bool_)
    # Senders first: a tight receiver then takes rates only from receivers that are not tight. The
    # last round serves the other ports with what is left, and takes from none.
    for wanted, low, high in ((True, 0, num_ports), (False, 0, num_machines)):
        may_lose = ~tight if wanted else none_may_lose
        for p in range(low, high):
            while (
                tight[p] == wanted
                and left[p] > _NOTHING * capacity[p]
                and _raise_port(flows, first, members, p, may_lose, capacity, left, rates)
            ):
                pass
    used = np.zeros(num_ports)
    for p in range(num_ports):
        for k in range(first[p], first[p + 1]):
            used[p] += rates[members[k]] / capacity[p]
    slowest = np.inf
    for p in range(num_ports):
        if tight[p]:
            slowest = min(slowest, used[p])
    hold_s = np.inf
    for p in range(num_ports):
        if not tight[p] and first[p] < first[p + 1] and used[p] < slowest:
            hold_s = min(hold_s, (most_s - load_s[p]) / (slowest - used[p]))
    return hold_s


@rule
def matching_rates(flows, nic_out, nic_in, pace_s, rates):
    """Cover the tight ports of each coflow, on the bandwidth left by earlier ones.

    Returns:
        Seconds after which rates must be computed again even if the open flows stay the same.
    """
    rates[:] = 0.0
    capacity = port_capacities(nic_out, nic_in)
    left = capacity.copy()
    classes = np.empty(len(flows), np.int64)
    for i in range(len(flows)):
        classes[i] = priority_class(flows[i]["kind"], flows[i]["iteration"])
    chosen = np.empty(len(flows), np.bool_)
    hold_s = np.inf
    last = np.int64(-1)
    while True:
        current = np.int64(_NONE)
        for i in range(len(flows)):
            if last < classes[i] < current:
                current = classes[i]
        if current == _NONE:
            break
        for i in range(len(flows)):
            chosen[i] = classes[i] == current
        hold_s = min(hold_s, _match(flows, chosen, capacity, left, rates))
        last = current
    return hold_s


MATCHING = FlowPolicy(
    "matching",
    9,
    "coflows in order, each in matchings that keep its busiest NIC at line rate",
    matching_rates,
)
