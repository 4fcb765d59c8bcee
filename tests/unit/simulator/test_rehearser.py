"""A `Rehearser` finds what `simulate` finds, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.errors import InfeasibleError, SpecError
from headrace.core.job import Role, Sync
from headrace.core.placement import Placement
from headrace.policies.flow import FLOW_POLICIES
from headrace.simulator import Rehearser, build_instance, simulate
from tests.oracle.instances import Case, random_case


def any_placement(case: Case, rng: np.random.Generator) -> Placement:
    def machines(num: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, case.problem.cluster.num_machines, size=num).tolist())

    job = case.problem.job
    return Placement(
        samplers=machines(job.num_samplers),
        trainers=machines(job.trainers),
        servers=machines(job.num_servers),
    )


def any_seeds(case: Case, rng: np.random.Generator) -> np.ndarray:
    job = case.problem.job
    mix = rng.dirichlet(np.ones(case.problem.cluster.num_machines), size=job.num_samplers)
    return mix * (job.batch_size / job.samplers_per_trainer)


@pytest.mark.parametrize("sync", list(Sync))
@pytest.mark.parametrize("seed", range(12))
def test_agrees_with_simulate_bit_for_bit(sync: Sync, seed: int) -> None:
    case = random_case(seed, sync=sync)
    rng = np.random.default_rng(seed)
    seeds = any_seeds(case, rng) if seed % 2 else None
    rehearser = Rehearser(case.problem, seeds=seeds, seed=seed)
    assert rehearser.is_in_place
    for i in range(8):
        placement = any_placement(case, rng)
        mix = any_seeds(case, rng) if i % 3 == 2 else None
        instance, _ = build_instance(
            case.problem,
            placement,
            seeds=seeds if mix is None else mix,
            seed=seed,
        )
        for policy in FLOW_POLICIES:
            expected_s = simulate(instance, policy).makespan_s
            assert rehearser.makespan_s(placement, policy, mix) == expected_s


def test_iterations_and_window_replace_the_jobs() -> None:
    case = random_case(3, sync=Sync.PS)
    rehearser = Rehearser(case.problem, num_iterations=7, window=1)
    instance, _ = build_instance(case.problem, case.placement, num_iterations=7, window=1)
    expected_s = simulate(instance, "oes").makespan_s
    assert rehearser.makespan_s(case.placement, "oes") == expected_s


def test_builds_anew_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's input that follows placement in a field of its own must not be reused."""
    monkeypatch.setattr("headrace.simulator.rehearser._same", lambda *args, **kwargs: False)
    case = random_case(5, sync=Sync.RING)
    rng = np.random.default_rng(0)
    rehearser = Rehearser(case.problem)
    assert not rehearser.is_in_place
    for _ in range(5):
        placement = any_placement(case, rng)
        instance, _ = build_instance(case.problem, placement)
        expected_s = simulate(instance, "priority").makespan_s
        assert rehearser.makespan_s(placement, "priority") == expected_s


def test_refuses_what_simulate_refuses() -> None:
    case = random_case(4, sync=Sync.PS)
    job = case.problem.job.model_copy(update={"demands": {Role.TRAINER: {"gpu": 1.0}}})
    rehearser = Rehearser(case.problem._replace(job=job))
    with pytest.raises(InfeasibleError, match="gpu"):
        rehearser.makespan_s(case.placement, "oes")
    with pytest.raises(SpecError, match="no flow policy 'best'"):
        Rehearser(case.problem).makespan_s(case.placement, "best")
    outside = case.placement.model_copy(update={"servers": (99,) * job.num_servers})
    with pytest.raises(SpecError, match="outside"):
        rehearser.makespan_s(outside, "oes")
    short = case.placement.model_copy(update={"samplers": ()})
    with pytest.raises(SpecError, match="samplers"):
        rehearser.makespan_s(short, "oes")
