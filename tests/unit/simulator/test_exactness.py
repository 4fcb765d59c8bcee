"""The kernel gives what the naive simulator gives, to 1e-9, for every policy."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from headrace.core.job import Sync
from headrace.policies.flow import FLOW_POLICIES
from headrace.simulator import simulate
from headrace.simulator.draws import draw_index
from tests.oracle.comparison import differences, exact_differences
from tests.oracle.instances import WINDOWS, random_case, random_instance
from tests.oracle.naive import draw_index as draw_index_by_hand
from tests.oracle.policies import POLICIES

SAMPLE = range(100)
CAMPAIGN = range(1_000, 3_000)
CHUNK = 50

# Where flows end together by symmetry, rounding decides who is first, and a rule that serves one
# flow at a time may then take another branch; the others depend continuously on when things happen.
CONTINUOUS = ("oes", "maxmin", "priority", "paced", "omcoflow")


def check(seed: int) -> list[str]:
    instance = random_instance(seed)
    return [
        f"seed {seed}, {policy}: {line}"
        for policy in FLOW_POLICIES
        for line in differences(instance, policy)
    ]


def test_every_policy_has_a_twin() -> None:
    assert set(FLOW_POLICIES) == set(POLICIES)


@pytest.mark.parametrize("first", SAMPLE[: CHUNK : CHUNK // 2])
def test_kernel_agrees_on_a_sample(first: int) -> None:
    assert not [line for seed in range(first, first + CHUNK // 2) for line in check(seed)]


@pytest.mark.campaign
@pytest.mark.parametrize("first", CAMPAIGN[::CHUNK])
def test_kernel_agrees_on_2000_instances(first: int) -> None:
    assert not [line for seed in range(first, first + CHUNK) for line in check(seed)]


@pytest.mark.parametrize("policy", FLOW_POLICIES)
def test_general_kernel_agrees_too(policy: str) -> None:
    found = []
    for seed in SAMPLE[:25]:
        instance = random_instance(seed)
        found += [f"seed {seed}: {line}" for line in differences(instance, policy, general=True)]
    assert not found


@pytest.mark.parametrize("policy", CONTINUOUS)
def test_kernel_agrees_where_flows_are_symmetric(policy: str) -> None:
    found = []
    for seed in range(60):
        instance = random_case(seed, generic=False).instance
        found += [f"seed {seed}: {line}" for line in differences(instance, policy, ties=True)]
    assert not found


def test_both_kernels_are_exact_where_events_are_simultaneous() -> None:
    # Without a tolerance, both kernels are wrong on the last two.
    assert not [line for seed in (*range(10), 1005, 1132) for line in exact_differences(seed)]


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(1_000, 6_000, 250))
def test_both_kernels_are_exact_on_5000_symmetric_instances(first: int) -> None:
    assert not [line for seed in range(first, first + 250) for line in exact_differences(seed)]


def test_sample_covers_what_it_should() -> None:
    cases = [random_case(seed) for seed in SAMPLE]
    assert {case.instance.window for case in cases} == set(WINDOWS)
    assert {case.problem.job.sync for case in cases} == set(Sync)
    assert {case.problem.job.trainers for case in cases} == {1, 2, 3, 4}
    assert {case.instance.num_machines for case in cases} == {2, 3, 4, 5}
    assert {case.instance.num_iterations for case in cases} == {2, 3, 4, 5, 6}
    assert {case.problem.job.num_servers for case in cases} == {0, 1, 2}
    assert any((case.instance.task_time_s[: case.graph.first_ring] == 0).any() for case in cases)
    assert any(len(case.instance.tables) > 1 for case in cases)
    assert any((case.instance.tables == 0).any() for case in cases)


@pytest.mark.parametrize("policy", FLOW_POLICIES)
def test_recording_changes_nothing(policy: str) -> None:
    for seed in range(10):
        instance = random_instance(seed)
        bare, recorded = simulate(instance, policy), simulate(instance, policy, record=True)
        assert bare.record is None
        assert bare.makespan_s == recorded.makespan_s
        assert bare.num_events == recorded.num_events
        assert np.array_equal(bare.in_bytes, recorded.in_bytes)
        assert np.array_equal(bare.out_bytes, recorded.out_bytes)


def test_draws_agree_with_plain_integers() -> None:
    @njit(cache=False)
    def compiled(seed: int, stream: int, iteration: int, length: int) -> int:
        return int(draw_index(seed, stream, iteration, length))

    rng = np.random.default_rng(5)
    drawn = []
    for _ in range(2_000):
        seed, stream = int(rng.integers(2**31)), int(rng.integers(2**20))
        iteration, length = int(rng.integers(10_000)), int(rng.integers(1, 300))
        index = draw_index_by_hand(seed, stream, iteration, length)
        assert 0 <= index < length
        assert compiled(seed, stream, iteration, length) == index
        drawn.append(index / length)
    assert abs(np.mean(drawn) - 0.5) < 0.02
