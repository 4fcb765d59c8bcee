"""Theorem 3, the Delta bound and their degrees: window unlimited, volumes fixed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.job import Job, Sync
from headrace.core.tasks import EdgeKind, build_task_graph
from headrace.simulator import Instance, simulate
from tests.oracle.instances import constant_case, fixed_instance, ring_instance
from tests.oracle.naive import is_flow, rehearse
from tests.oracle.theory import (
    TOLERANCE,
    Shape,
    bounds,
    path_length,
    random_small,
    ring_width,
    run_campaign,
    shape_of,
)


def oes_makespan_s(instance: Instance) -> float:
    return simulate(instance, "oes").makespan_s


def check_campaign(num_instances: int, seed: int) -> None:
    found = run_campaign(num_instances, seed, oes_makespan_s)
    assert found.instances == num_instances
    assert found.theorem3_violations == 0
    assert found.delta_violations == 0
    # Both bounds are met with equality where no two flows share a port.
    assert found.worst_theorem3_ratio == pytest.approx(1.0, abs=TOLERANCE)
    assert found.worst_delta_ratio == pytest.approx(1.0, abs=TOLERANCE)


def test_bounds_hold_on_a_sample() -> None:
    check_campaign(1_500, seed=11)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [21, 22, 23, 24])
def test_bounds_hold_on_many(seed: int) -> None:
    check_campaign(5_000, seed)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**31))
def test_bounds_hold_on_full_jobs(seed: int) -> None:
    case = constant_case(seed)
    found = bounds(case.instance, shape_of(case.graph))
    makespan_s = oes_makespan_s(case.instance)
    assert makespan_s <= found.critical_path_s * (1 + TOLERANCE)
    assert makespan_s <= found.delta * found.full_rate_chain_s * (1 + TOLERANCE)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**31))
def test_bounds_hold_for_the_naive_twin(seed: int) -> None:
    instance, shape = random_small(np.random.default_rng(seed))
    found = bounds(instance, shape)
    makespan_s = rehearse(instance, "oes").makespan_s
    assert makespan_s <= found.critical_path_s * (1 + TOLERANCE)
    assert found.full_rate_chain_s <= makespan_s * (1 + TOLERANCE)


def longest_path_by_hand(
    instance: Instance, task_weight: np.ndarray, edge_weight: np.ndarray
) -> float:
    """The execution DAG written out with all its vertices, longest path by memory."""
    finish: dict[tuple[str, int, int], float] = {}

    def flow(e: int, n: int) -> float:
        if ("flow", e, n) not in finish:
            start = task(int(instance.edge_src[e]), n)
            if n > 0 and is_flow(instance, e):
                start = max(start, flow(e, n - 1))
            weight = float(edge_weight[e]) if is_flow(instance, e) else 0.0
            finish["flow", e, n] = start + weight
        return finish["flow", e, n]

    def task(j: int, n: int) -> float:
        if ("task", j, n) not in finish:
            start = task(j, n - 1) if n > 0 else 0.0
            for e in range(instance.num_edges):
                at = n - int(instance.edge_lag[e])
                if instance.edge_dst[e] == j and at >= 0:
                    start = max(start, flow(e, at))
            finish["task", j, n] = start + float(task_weight[j])
        return finish["task", j, n]

    last = instance.num_iterations - 1
    return max(task(j, last) for j in range(instance.num_tasks))


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31))
def test_longest_path_agrees_with_the_dag_written_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    instance, shape = random_small(rng)
    edge_weight = rng.uniform(0, 3, size=instance.num_edges) * (instance.edge_bytes > 0)
    found = path_length(instance, shape, instance.task_time_s, edge_weight)
    wanted = longest_path_by_hand(instance, instance.task_time_s, edge_weight)
    assert found == pytest.approx(wanted, rel=1e-12)


def ring_shape(num_machines: int, num_trainers: int) -> Shape:
    job = Job(trainers=num_trainers, sync=Sync.RING, batch_size=1)
    return shape_of(build_task_graph(job, num_machines))


def test_bounds_by_hand() -> None:
    # Machine 0 sends two flows of 4 and 8 bytes at 4 bytes/s: 2 s and 4 s at half rate, 1 s and 2 s
    # alone.
    job = Job(trainers=1, samplers_per_trainer=2, sync=Sync.RING, batch_size=2)
    graph = build_task_graph(job, num_machines=2)
    volume = {(0, 2): 4.0, (0, 3): 8.0}
    instance = fixed_instance(
        machines=[0, 1, 1, 1, 1],
        times=[1.0, 0.0, 0.0, 0.0, 0.5],
        edges=[
            (int(s), int(d), 0, EdgeKind(k), volume.get((int(s), int(d)), 0.0))
            for s, d, k in zip(graph.src, graph.dst, graph.kind, strict=True)
        ],
        nic_out=[4.0, 1.0],
        nic_in=[1.0, 9.0],
        num_iterations=2,
    )
    found = bounds(instance, shape_of(graph))
    assert found.delta == 2
    assert found.critical_path_s == 1.0 + 2 * 4.0 + 0.5
    assert found.full_rate_chain_s == 1.0 + 2 * 2.0 + 0.5
    # The first short flow ends at 3, the second shares until 5, and the second long one is alone
    # until 7.
    assert oes_makespan_s(instance) == 7.5


def most_chunks_in_transit(instance: Instance) -> int:
    """Largest number of ring flows that one machine sends at one time."""
    record = simulate(instance, "oes", record=True).record
    assert record is not None
    most = 0
    src = instance.task_machine[instance.edge_src]
    for m in range(instance.num_machines):
        edges = (src == m) & (instance.edge_kind == EdgeKind.RING)
        starts, ends = record.flow_start_s[edges], record.flow_end_s[edges]
        starts, ends = starts[~np.isnan(starts)], ends[~np.isnan(starts)]
        for moment in starts:
            most = max(most, int(((starts <= moment) & ~(ends <= moment)).sum()))
    return most


@pytest.mark.parametrize("num_trainers", [2, 3, 4, 5])
def test_a_slow_sender_has_as_many_chunks_in_transit_as_the_ring_is_wide(num_trainers: int) -> None:
    nic_out = [1e3] * (num_trainers - 1) + [1.0]
    machines = list(range(num_trainers))
    instance = ring_instance(machines, [1.0] * num_trainers, nic_out, 4.0, num_iterations=3)
    assert most_chunks_in_transit(instance) == ring_width(num_trainers)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**31))
def test_no_machine_sends_more_chunks_than_the_ring_is_wide(seed: int) -> None:
    instance, shape = random_small(np.random.default_rng(seed))
    assert most_chunks_in_transit(instance) <= ring_width(shape.graph.num_trainers)


def test_one_chunk_per_trainer_would_be_too_few() -> None:
    # Trainer 1 sends its second chunk while the first is half way, so trainer 0 has to wait until 5
    # (worked out in test_naive_by_hand); a degree of one chunk per trainer promises 4.
    instance = ring_instance([0, 1], [1.0, 2.0], [4.0, 2.0], 4.0, num_iterations=1)
    shape = ring_shape(2, 2)
    assert oes_makespan_s(instance) == 5.0
    assert bounds(instance, shape, width=1).critical_path_s == 4.0
    assert bounds(instance, shape).critical_path_s >= 5.0
