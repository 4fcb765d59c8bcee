from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.core.job import Sync
from headrace.observability.lanes import FLOW_KINDS, flow_ends, flow_kinds, stack, task_lanes
from tests.unit.observability.traces import random_trace, tiny_trace


@pytest.mark.parametrize("seed", range(20))
def test_stack_uses_as_few_lanes_as_overlap_and_none_overlap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    start = np.sort(rng.integers(0, 30, 60)).astype(float)
    end = start + rng.integers(1, 8, 60)
    lanes = stack(start, end)
    for lane in np.unique(lanes):
        mine = lanes == lane
        assert (end[mine][:-1] <= start[mine][1:]).all()
    at_once = max(int(((start <= t) & (end > t)).sum()) for t in start)
    assert lanes.max() + 1 == at_once


def test_stack_takes_the_first_free_lane() -> None:
    start, end = np.array([0.0, 0.0, 1.0, 2.0]), np.array([2.0, 1.0, 3.0, 3.0])
    assert stack(start, end).tolist() == [0, 1, 1, 0]


def test_kinds_of_flows_follow_from_roles() -> None:
    kinds = [FLOW_KINDS[kind] for kind in flow_kinds(tiny_trace())]
    assert kinds == ["graph", "graph", "gradient", "parameter"]
    ring = random_trace(3, 4, Sync.RING)
    assert {FLOW_KINDS[kind] for kind in flow_kinds(ring)} == {"graph", "batch", "ring"}


def test_a_flow_that_cannot_exist_is_named() -> None:
    trace = tiny_trace()
    wrong = replace(trace, flows=replace(trace.flows, src=np.array([0, 2, 3, 4])))
    wrong = replace(wrong, flows=replace(wrong.flows, dst=np.array([2, 4, 4, 3])))
    with pytest.raises(ValueError, match=r"unexpected flow from sampler0\.0 to ps0"):
        flow_kinds(wrong)


def test_a_flow_without_an_end_ends_with_the_trace() -> None:
    trace = tiny_trace()
    assert flow_ends(trace).tolist() == [0.03, 0.05, 0.061, trace.makespan_s]


def test_every_task_has_a_lane_of_its_own_but_ring_steps_share_their_trainers() -> None:
    trace = random_trace(3, 11, Sync.RING)
    lanes, names = task_lanes(trace)
    of_ring = [name for name in names if name.startswith("ring")]
    assert sorted(of_ring, key=lambda name: int(name[4:])) == [f"ring{w}" for w in range(11)]
    singles = np.array([role != "ring" for role in trace.task_roles])
    assert len(np.unique(lanes[singles])) == singles.sum()
    for task, lane in enumerate(lanes):
        assert trace.task_names[task].startswith(names[lane])


def test_lanes_are_ordered_by_machine_then_role_then_number() -> None:
    trace = random_trace(2, 12, Sync.RING)
    lanes, names = task_lanes(trace)
    machine_of = dict(zip(lanes.tolist(), trace.task_machines.tolist(), strict=True))
    machines = [machine_of[lane] for lane in range(len(names))]
    assert machines == sorted(machines)
    first = [name for name, machine in zip(names, machines, strict=True) if machine == 0]
    heads = [name.rstrip("0123456789.") for name in first]
    order = ("store", "sampler", "trainer", "barrier", "ring")
    assert [order.index(head) for head in heads] == sorted(order.index(head) for head in heads)
    trainers = [int(name[7:]) for name in first if name.startswith("trainer")]
    assert trainers == sorted(trainers)
