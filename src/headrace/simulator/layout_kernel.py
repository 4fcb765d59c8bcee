"""Placement-dependent fields of the kernel input."""

from __future__ import annotations

from headrace.core.tasks import EdgeKind
from headrace.policies.compiled import hot_loop

_ORDER = int(EdgeKind.ORDER)


@hot_loop
def lay_out(
    task_machine,
    role,
    time_s,
    table,
    scale,
    edge_src,
    edge_dst,
    edge_kind,
    task_time_s,
    task_table,
    edge_pair,
    item_start,
):
    """Write task times, factor tables, machine pairs and flow offsets of a placement.

    The last four arguments are outputs. `edge_pair` is sender * machines + receiver, or -1 for
    edges that do not cross the network. `item_start` is the offset of each pair's edges, sorted by
    pair, plus the end.
    """
    num_machines = time_s.shape[1]
    for task in range(len(task_machine)):
        machine = task_machine[task]
        task_time_s[task] = time_s[role[task], machine] * scale[task]
        task_table[task] = table[role[task], machine]
    for i in range(len(item_start)):
        item_start[i] = 0
    for edge in range(len(edge_src)):
        sender, receiver = task_machine[edge_src[edge]], task_machine[edge_dst[edge]]
        if sender != receiver and edge_kind[edge] != _ORDER:
            pair = sender * num_machines + receiver
            edge_pair[edge] = pair
            item_start[pair + 1] += 1
        else:
            edge_pair[edge] = -1
    for i in range(1, len(item_start)):
        item_start[i] += item_start[i - 1]
