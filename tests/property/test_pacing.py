"""The bound of `paced`: window unlimited, volumes fixed or at their peak."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.tasks import EdgeKind
from headrace.policies.flow import FLOW_POLICIES
from headrace.simulator import Instance, simulate
from tests.oracle.instances import constant_case, fixed_instance, ring_instance
from tests.oracle.naive import rehearse
from tests.oracle.pacing import (
    at_peak,
    largest_load_s,
    paced_bound,
    random_paced,
    random_varied,
    run_paced_campaign,
)
from tests.oracle.theory import TOLERANCE, shape_of, small_shape

SLACK = 1 + TOLERANCE


def paced_makespan_s(instance: Instance) -> float:
    return simulate(instance, "paced").makespan_s


def check_campaign(num_instances: int, seed: int) -> None:
    found = run_paced_campaign(num_instances, seed, paced_makespan_s)
    assert found.paced_instances == num_instances
    assert found.paced_violations == 0
    assert found.paced_within_T_instances > num_instances / 4
    # Met with equality where every flow is alone on the busiest port.
    assert found.worst_paced_ratio == pytest.approx(1.0, abs=TOLERANCE)


def test_bound_holds_on_a_sample() -> None:
    check_campaign(500, seed=11)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [21, 22, 23, 24])
def test_bound_holds_on_many(seed: int) -> None:
    check_campaign(5_000, seed)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31))
def test_bound_holds_on_full_jobs(seed: int) -> None:
    case = constant_case(seed)
    found = paced_bound(case.instance, shape_of(case.graph))
    assert paced_makespan_s(case.instance) <= found.bound_s * SLACK


@settings(max_examples=20)
@given(seed=st.integers(0, 2**31))
def test_bound_holds_for_the_naive_twin(seed: int) -> None:
    instance, shape = random_paced(np.random.default_rng(seed))
    assert rehearse(instance, "paced").makespan_s <= paced_bound(instance, shape).bound_s * SLACK


@settings(max_examples=60)
@given(seed=st.integers(0, 2**31))
def test_no_flow_lasts_longer_than_the_period(seed: int) -> None:
    instance, _ = random_paced(np.random.default_rng(seed))
    record = simulate(instance, "paced", record=True).record
    assert record is not None
    lasted = record.flow_end_s - record.flow_start_s
    assert (lasted[~np.isnan(lasted)] <= instance.pace_s * SLACK).all()


def check_varied(num_instances: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(num_instances):
        instance, shape = random_varied(rng)
        outcome = simulate(instance, "paced", record=True)
        assert outcome.record is not None
        found = paced_bound(at_peak(instance, outcome.record), shape)
        assert outcome.makespan_s <= found.bound_s * SLACK


def test_bound_holds_at_the_peak_where_volumes_vary() -> None:
    check_varied(500, seed=12)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [31, 32])
def test_bound_holds_at_the_peak_on_many(seed: int) -> None:
    check_varied(10_000, seed)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**31))
def test_cycle_is_what_an_iteration_costs_in_the_long_run(seed: int) -> None:
    instance, shape = random_paced(np.random.default_rng(seed))
    num_iterations = 50
    found = paced_bound(replace(instance, num_iterations=num_iterations), shape)
    assert (num_iterations - 1) * found.cycle_s <= found.path_s * SLACK
    assert found.path_s <= found.bound_s * SLACK


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31), policy=st.sampled_from(sorted(FLOW_POLICIES)))
def test_no_policy_beats_the_load(seed: int, policy: str) -> None:
    instance, _ = random_paced(np.random.default_rng(seed))
    load_s = largest_load_s(instance, instance.edge_bytes)
    makespan_s = simulate(instance, policy).makespan_s
    assert (instance.num_iterations - 1) * load_s <= makespan_s * SLACK


def test_bound_by_hand() -> None:
    # One trainer on machine 1 with sampler and server there: store 0 sends 8 bytes at 4 bytes/s.
    shape = small_shape(2, 1, 1, 1)
    graph = shape.graph
    edges = [
        (int(s), int(d), int(lag), EdgeKind(k), 8.0 if (s, d) == (0, 2) else 0.0)
        for s, d, lag, k in zip(graph.src, graph.dst, graph.lag, graph.kind, strict=True)
    ]
    instance = fixed_instance(
        machines=[0, 1, 1, 1, 1],
        times=[1.0, 0.0, 0.5, 0.5, 0.25],
        edges=edges,
        nic_out=[4.0, 4.0],
        nic_in=[4.0, 4.0],
        num_iterations=3,
        pace_s=2.0,
    )
    found = paced_bound(instance, shape)
    assert found.within_period
    assert found.cycle_s == 2.0
    assert found.latency_s == 1.0 + 2.0 + 0.5 + 0.5 + 0.25
    assert paced_makespan_s(instance) == found.bound_s == 2 * 2.0 + 4.25


def test_ring_between_machines_takes_one_period_per_step() -> None:
    # 4 bytes per chunk, two chunks per iteration at 4 bytes/s: T is 2, and the way from a trainer
    # to its next iteration takes two flows.
    instance = ring_instance([0, 1], [1.0, 1.0], [4.0, 4.0], 4.0, num_iterations=5)
    instance = replace(instance, pace_s=2.0)
    found = paced_bound(instance, small_shape(2, 2, 1, 0))
    assert found.cycle_s == 1.0 + 2 * 2.0
    # The flows of a ring follow each other, so each has the port to itself.
    assert paced_makespan_s(instance) == 5 * 3.0 - 1.0 < found.bound_s
