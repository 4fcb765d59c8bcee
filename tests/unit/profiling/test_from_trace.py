"""A rehearsal of a known profile is measured: the profile comes back."""

from __future__ import annotations

import numpy as np
import pytest

import headrace
from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import SpecError
from headrace.core.job import Job, Role
from headrace.core.plan import Plan
from headrace.core.profile import BatchTraffic, Profile, StoreTraffic, TaskTime, Variation
from headrace.core.trace import Trace
from headrace.profiling import measured_iteration_time_s, profile_trace

VARIES = Variation(peak_to_mean=1.4)
MATRIX = ((900.0, 200.0, 100.0), (150.0, 1000.0, 250.0), (120.0, 80.0, 700.0))


def cluster_of(kinds: tuple[str, ...]) -> Cluster:
    return Cluster(
        machines=tuple(
            Machine(name=f"m{i}", kind=kind, nic_in=1e8, nic_out=1e8, resources={"cpu": 4})
            for i, kind in enumerate(kinds)
        )
    )


def job_of(**changes: object) -> Job:
    settings: dict[str, object] = {
        "trainers": 3,
        "samplers_per_trainer": 2,
        "batch_size": 200,
        "model_bytes": 90_000,
        "iterations": 400,
        "demands": {Role.SAMPLER: {"cpu": 1}, Role.TRAINER: {"cpu": 1}},
    }
    return Job.model_validate(settings | changes)


def known_profile() -> Profile:
    return Profile(
        task_times={
            Role.STORE: {"default": TaskTime(mean=0.001)},
            Role.SAMPLER: {
                "fast": TaskTime(mean=0.004, variation=VARIES),
                "slow": TaskTime(mean=0.008, variation=VARIES),
            },
            Role.TRAINER: {"default": TaskTime(mean=0.02, variation=VARIES)},
            Role.RING: {"default": TaskTime(mean=0.0005)},
        },
        store_traffic=StoreTraffic(matrix=MATRIX, variation=VARIES),
        batch_traffic=BatchTraffic(bytes_per_seed=300, variation=VARIES),
    )


@pytest.fixture(scope="module")
def plan() -> Plan:
    cluster = cluster_of(("fast", "slow", "slow"))
    return headrace.plan(cluster, job_of(), known_profile(), method="colocate")


@pytest.fixture(scope="module")
def trace(plan: Plan) -> Trace:
    return headrace.simulate(
        plan.cluster, plan.job, plan.profile, plan, record=True, iterations=400
    ).trace()


def test_times_come_back(plan: Plan, trace: Trace) -> None:
    found, known = profile_trace(trace, plan), plan.profile
    assert found.source == "measured"
    assert found.skipped == 10
    for role in (Role.STORE, Role.SAMPLER, Role.TRAINER, Role.RING):
        for kind in ("fast", "slow"):
            got, asked = found.task_time(role, kind), known.task_time(role, kind)
            assert got.relative_error is not None
            assert got.num_samples is not None
            assert got.num_samples >= 390
            # Four standard errors: one in 16,000 such figures is further away.
            assert got.mean == pytest.approx(asked.mean, rel=max(2.1 * got.relative_error, 1e-6))
    factors = found.task_time(Role.TRAINER, "fast").variation.factors()
    assert np.quantile(factors, 0.95) == pytest.approx(1.36, abs=0.03)


def test_volumes_come_back(plan: Plan, trace: Trace) -> None:
    found = profile_trace(trace, plan)
    traffic = found.store_traffic
    seeds, machines = plan.seeds, plan.placed.samplers
    for part in range(3):
        for store in range(3):
            others = [s for s, m in enumerate(machines) if m != store and seeds[s, part] > 0]
            error = traffic.relative_errors[part][store]
            if error < 0.5:
                assert others
                assert traffic.matrix[part][store] == pytest.approx(
                    MATRIX[part][store], rel=max(2.1 * error, 1e-6)
                )
    assert found.model_bytes == pytest.approx(90_000)
    assert np.quantile(traffic.variation.factors(), 0.95) == pytest.approx(1.36, abs=0.04)
    if found.batch_traffic.bytes_per_seed:
        assert found.batch_traffic.bytes_per_seed == pytest.approx(300, rel=0.02)


def test_what_was_found_predicts_the_run(plan: Plan, trace: Trace) -> None:
    found = profile_trace(trace, plan)
    predicted = headrace.simulate(plan.cluster, plan.job, found, plan, iterations=400)
    assert predicted.iteration_time_s == pytest.approx(measured_iteration_time_s(trace), rel=0.03)


def test_too_few_iterations_are_refused(plan: Plan, trace: Trace) -> None:
    with pytest.raises(SpecError, match="400 iterations, of which 400 are to be excluded"):
        profile_trace(trace, plan, skip=400)
    with pytest.raises(SpecError, match="run more iterations"):
        measured_iteration_time_s(trace, skip=400)
