"""What a placement changes in a kernel's input."""

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
    """Write times, tables, machine pairs and where each pair's flows are kept.

    Args:
        task_machine: Machine per task.
        role: Role code per task.
        time_s: Mean time per role and machine.
        table: Table of factors per role and machine.
        scale: What a task's time is multiplied by.
        edge_src: Producing task per edge.
        edge_dst: Consuming task per edge.
        edge_kind: `EdgeKind` per edge.
        task_time_s: Written: mean time per task.
        task_table: Written: table of factors per task.
        edge_pair: Written: sender * machines + receiver, or -1 where nothing crosses the network.
        item_start: Written: where each pair's edges start if sorted by pair; one entry more.
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
