"""Tiny rehearsals worked out on paper; the naive twin and the kernel must both find them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from headrace.core.tasks import EdgeKind
from headrace.simulator import Instance, simulate
from tests.oracle.instances import fixed_instance, ring_instance
from tests.oracle.naive import NaiveOutcome, rehearse
from tests.oracle.policies import POLICIES

Times = tuple[float, int, np.ndarray, np.ndarray, np.ndarray]
Body = Callable[[Instance, str], Times]


def by_naive(instance: Instance, policy: str) -> Times:
    found: NaiveOutcome = rehearse(instance, policy)
    return (
        found.makespan_s,
        found.num_events,
        found.task_start_s,
        found.flow_start_s,
        found.flow_end_s,
    )


def by_kernel(instance: Instance, policy: str) -> Times:
    found = simulate(instance, policy, record=True)
    assert found.record is not None
    record = found.record
    times = (record.task_start_s, record.flow_start_s, record.flow_end_s)
    return (found.makespan_s, found.num_events, *times)


bodies = pytest.mark.parametrize("body", [by_naive, by_kernel])


@bodies
@pytest.mark.parametrize("policy", POLICIES)
def test_one_flow_takes_the_slower_port(body: Body, policy: str) -> None:
    instance = fixed_instance(
        machines=[0, 1],
        times=[2.0, 3.0],
        edges=[(0, 1, 0, EdgeKind.GRAPH, 10.0)],
        nic_out=[5.0, 99.0],
        nic_in=[99.0, 4.0],
        pace_s=2.5,
    )
    makespan_s, num_events, task_start_s, flow_start_s, flow_end_s = body(instance, policy)
    assert makespan_s == 7.5
    assert num_events == 3
    assert task_start_s.tolist() == [[0.0], [4.5]]
    assert flow_start_s.tolist() == [[2.0]]
    assert flow_end_s.tolist() == [[4.5]]


@bodies
@pytest.mark.parametrize(
    ("policy", "ends_s"),
    [
        ("oes", [4.0, 3.0]),
        ("maxmin", [4.0, 3.0]),
        ("priority", [4.0, 2.0]),  # the gradients go first
        ("paced", [4.0, 4.0]),  # 8/3 and 4/3 bytes per second fill the port
        ("mrtf", [4.0, 2.0]),
        ("mrtf-exclusive", [4.0, 2.0]),
        ("omcoflow", [4.0, 2.5]),  # alone they take 2 s and 1 s, so rates are 1 : 2
        ("fifo", [3.0, 4.0]),  # both opened together: the smaller edge first
    ],
)
def test_two_flows_leave_one_machine(body: Body, policy: str, ends_s: list[float]) -> None:
    instance = fixed_instance(
        machines=[0, 1, 2],
        times=[1.0, 0.0, 0.0],
        edges=[(0, 1, 0, EdgeKind.GRAPH, 8.0), (0, 2, 0, EdgeKind.GRADIENT, 4.0)],
        nic_out=[4.0, 1.0, 1.0],
        nic_in=[1.0, 99.0, 99.0],
        pace_s=3.0,
    )
    makespan_s, num_events, _, _, flow_end_s = body(instance, policy)
    assert flow_end_s[:, 0] == pytest.approx(ends_s, rel=1e-12)
    assert makespan_s == pytest.approx(4.0, rel=1e-12)
    assert num_events == 5


@bodies
@pytest.mark.parametrize(("policy", "end_s"), [("oes", 3.0), ("maxmin", 2.0)])
def test_oes_leaves_bandwidth_that_maxmin_gives_away(body: Body, policy: str, end_s: float) -> None:
    instance = fixed_instance(
        machines=[0, 1, 2],
        times=[0.0, 0.0, 0.0],
        edges=[(0, 1, 0, EdgeKind.GRAPH, 3.0), (0, 2, 0, EdgeKind.GRAPH, 6.0)],
        nic_out=[4.0, 1.0, 1.0],
        nic_in=[1.0, 1.0, 99.0],
    )
    _, _, _, _, flow_end_s = body(instance, policy)
    assert flow_end_s[:, 0].tolist() == [3.0, end_s]


@bodies
@pytest.mark.parametrize("policy", POLICIES)
def test_parameter_server_cycle(body: Body, policy: str) -> None:
    instance = fixed_instance(
        machines=[0, 1],
        times=[1.0, 0.5],
        edges=[(0, 1, 0, EdgeKind.GRADIENT, 4.0), (1, 0, 1, EdgeKind.PARAMETER, 4.0)],
        nic_out=[2.0, 2.0],
        nic_in=[2.0, 2.0],
        num_iterations=3,
        pace_s=2.0,
    )
    makespan_s, num_events, task_start_s, flow_start_s, flow_end_s = body(instance, policy)
    assert makespan_s == 14.5  # two cycles of 1 + 2 + 0.5 + 2, then one without the way back
    assert task_start_s.tolist() == [[0.0, 5.5, 11.0], [3.0, 8.5, 14.0]]
    assert flow_start_s[1].tolist() == [3.5, 9.0, 14.5]
    assert flow_end_s[1, :2].tolist() == [5.5, 11.0]
    assert np.isnan(flow_end_s[1, 2])
    assert num_events == 11


@bodies
@pytest.mark.parametrize(
    ("window", "makespan_s", "last_store_s"),
    [(1, 9.0, 6.0), (2, 6.0, 3.0), (4, 5.0, 2.0), (0, 5.0, 2.0)],
)
def test_window_holds_the_producer_back(
    body: Body, window: int, makespan_s: float, last_store_s: float
) -> None:
    instance = fixed_instance(
        machines=[0, 1],
        times=[1.0, 1.0],
        edges=[(0, 1, 0, EdgeKind.GRAPH, 2.0)],
        nic_out=[2.0, 2.0],
        nic_in=[2.0, 2.0],
        num_iterations=3,
        window=window,
    )
    found_s, num_events, task_start_s, _, _ = body(instance, "oes")
    assert found_s == makespan_s
    assert task_start_s[0, 2] == last_store_s
    assert num_events == 9


@bodies
def test_flows_of_one_pair_go_one_after_the_other(body: Body) -> None:
    instance = fixed_instance(
        machines=[0, 1],
        times=[1.0, 0.0],
        edges=[(0, 1, 0, EdgeKind.GRAPH, 6.0)],
        nic_out=[2.0, 2.0],
        nic_in=[2.0, 2.0],
        num_iterations=3,
    )
    _, _, task_start_s, flow_start_s, flow_end_s = body(instance, "maxmin")
    assert task_start_s[0].tolist() == [0.0, 1.0, 2.0]
    assert flow_start_s[0].tolist() == [1.0, 4.0, 7.0]
    assert flow_end_s[0].tolist() == [4.0, 7.0, 10.0]


@bodies
def test_empty_flows_and_local_data_take_no_time_and_are_no_events(body: Body) -> None:
    instance = fixed_instance(
        machines=[0, 1, 1, 0],
        times=[1.0, 1.0, 1.0, 1.0],
        edges=[
            (0, 1, 0, EdgeKind.GRAPH, 0.0),
            (1, 2, 0, EdgeKind.BATCH, 7.0),
            (2, 3, 0, EdgeKind.ORDER, 7.0),
        ],
        nic_out=[1.0, 1.0],
        nic_in=[1.0, 1.0],
    )
    makespan_s, num_events, _, flow_start_s, flow_end_s = body(instance, "oes")
    assert makespan_s == 4.0
    assert num_events == 4
    assert flow_start_s[0, 0] == flow_end_s[0, 0] == 1.0
    assert np.isnan(flow_start_s[1:]).all()
    assert np.isnan(flow_end_s[1:]).all()


@bodies
def test_ring_of_two_overlaps_the_chunks_of_a_slow_sender(body: Body) -> None:
    # All steps are ready at 2. Trainer 0 has sent its chunk at 3, so trainer 1 takes its second
    # step and sends again while its first chunk is half way: both go at 1 byte/s, and trainer 0
    # gets the first at 5.
    one = ring_instance([0, 1], [1.0, 2.0], [4.0, 2.0], 4.0, num_iterations=1)
    assert body(one, "oes")[0] == 5.0
    assert body(one, "maxmin")[0] == 5.0
    assert body(one, "fifo")[0] == 4.0
    # From 5 on trainer 1's second chunk has 2 bytes left, at 2 bytes/s: both trainers start again
    # at 6.
    two = ring_instance([0, 1], [1.0, 2.0], [4.0, 2.0], 4.0, num_iterations=2)
    assert body(two, "oes")[0] == 11.0


@bodies
@pytest.mark.parametrize("policy", ["oes", "maxmin", "priority", "mrtf", "mrtf-exclusive", "fifo"])
def test_ring_of_three_equal_machines(body: Body, policy: str) -> None:
    # 2(W-1) = 4 steps; three chunks of 2 s are waited for, the fourth only by the next iteration.
    one = ring_instance([0, 1, 2], [1.0] * 3, [2.0] * 3, 4.0, num_iterations=1)
    assert body(one, policy)[0] == 7.0
    two = ring_instance([0, 1, 2], [1.0] * 3, [2.0] * 3, 4.0, num_iterations=2)
    makespan_s, num_events, _, _, _ = body(two, policy)
    assert makespan_s == 16.0
    num_tasks, num_chunks = 3 + 3 + 3 + 1 + 12, 12 + 9
    assert num_events == 2 * num_tasks + num_chunks


@bodies
def test_ring_of_three_on_two_machines_passes_locally_for_free(body: Body) -> None:
    # Trainers 0 and 1 share a machine: only 1 -> 2 and 2 -> 0 cross, one chunk at a time, 2 s each.
    # Trainer 1 has its second chunk at once and sends in 1-3, 3-5, 5-7; trainer 2 waits for each of
    # them.
    one = ring_instance([0, 0, 1], [1.0] * 3, [2.0, 2.0], 4.0, num_iterations=1)
    _, _, task_start_s, _, flow_end_s = body(one, "fifo")
    first_step = 2 + 3 + 3 + 1
    steps = task_start_s[first_step:, 0].reshape(4, 3)
    assert steps.tolist() == [[1, 1, 1], [3, 1, 3], [5, 3, 5], [7, 5, 7]]
    ring = one.edge_kind == EdgeKind.RING
    assert np.nanmax(flow_end_s[ring, 0]) == 7.0
