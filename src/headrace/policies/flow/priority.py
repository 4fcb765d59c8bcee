"""`priority`: strict priority by when data is needed, max-min within a class.

Parameters and gradients come first, then batches and graph data by iteration, batches first.
Flows of a graph of coflows are ordered by the rank of their coflow (Hermod, section 5.3.1).
"""

from __future__ import annotations

import numpy as np

from headrace.core.tasks import FIRST_COFLOW, EdgeKind
from headrace.policies.compiled import hot, rule
from headrace.policies.flow._base import FlowPolicy
from headrace.policies.flow.filling import fill_flows, port_capacities

_GRAPH = int(EdgeKind.GRAPH)
_BATCH = int(EdgeKind.BATCH)
_AFTER_SYNC = 1 << 40
_NONE = 1 << 62


@hot
def priority_class(kind, iteration):
    """Priority class of a flow; smaller is served first."""
    if kind >= FIRST_COFLOW:
        return np.int64(kind - FIRST_COFLOW)
    if kind == _GRAPH:
        return np.int64(_AFTER_SYNC) + 2 * np.int64(iteration) + 1
    if kind == _BATCH:
        return np.int64(_AFTER_SYNC) + 2 * np.int64(iteration)
    return np.int64(iteration)


@rule
def priority_rates(flows, nic_out, nic_in, pace_s, rates):
    """Progressive filling per class on the capacity left by earlier classes."""
    rates[:] = 0.0
    left = port_capacities(nic_out, nic_in)
    classes = np.empty(len(flows), np.int64)
    weight = np.empty(len(flows))
    for i in range(len(flows)):
        weight[i] = 1.0
        classes[i] = priority_class(flows[i]["kind"], flows[i]["iteration"])
    chosen = np.empty(len(flows), np.bool_)
    last = np.int64(-1)
    while True:
        # np.unique takes longer to compile than the rest of this module.
        current = np.int64(_NONE)
        for i in range(len(flows)):
            if last < classes[i] < current:
                current = classes[i]
        if current == _NONE:
            break
        for i in range(len(flows)):
            chosen[i] = classes[i] == current
        fill_flows(flows, chosen, weight, left, rates)
        last = current


PRIORITY = FlowPolicy(
    "priority", 2, "strict priority by when data is needed, max-min within a class", priority_rates
)
