from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import InfeasibleError
from headrace.core.job import Job, Role, Sync
from headrace.core.placement import Placement
from headrace.core.profile import BatchTraffic, Problem, Profile, StoreTraffic, TaskTime
from headrace.planner.cost.objective import evaluate
from headrace.planner.cost.seed_mix import local_first_seeds
from headrace.planner.cost.speed_classes import compute_bound_s, time_bound_s
from headrace.planner.planner import make_plan
from tests.support.examples import examples

nics = st.sampled_from([0.5e9, 1e9, 3e9])
times = st.sampled_from([0.001, 0.01, 0.1])
entries = st.sampled_from([0.0, 1e4, 1e5, 1e6])


@st.composite
def settings_of(draw: st.DrawFn) -> Problem:
    num = draw(st.integers(2, 3))
    cluster = Cluster(
        machines=tuple(
            Machine(
                name=f"m{m}",
                kind=draw(st.sampled_from(["fast", "slow"])),
                resources={"cpu": draw(st.integers(1, 4))},
                nic_in=draw(nics),
                nic_out=draw(nics),
            )
            for m in range(num)
        )
    )
    sync = draw(st.sampled_from(list(Sync)))
    job = Job(
        trainers=draw(st.integers(1, 2)),
        samplers_per_trainer=draw(st.integers(1, 2)),
        sync=sync,
        batch_size=100,
        model_bytes=draw(st.sampled_from([0.0, 1e6])),
        window=draw(st.integers(0, 3)),
        demands={Role.SAMPLER: {"cpu": 1}, Role.TRAINER: {"cpu": 1}},
    )
    matrix = tuple(tuple(draw(entries) for _ in range(num)) for _ in range(num))
    traffic = draw(
        st.sampled_from(
            [StoreTraffic(matrix=matrix), StoreTraffic(bytes_per_seed=1e5, locality=0.5)]
        )
    )
    profile = Profile(
        seeds_per_sampler=draw(st.sampled_from([0.0, 25.0])),
        task_times={
            role: {
                "fast": TaskTime(mean=draw(times)),
                "slow": TaskTime(mean=draw(times)),
            }
            for role in Role
        },
        store_traffic=traffic,
        batch_traffic=BatchTraffic(bytes_per_seed=draw(entries)),
    )
    return Problem(cluster, job, profile)


@given(problem=settings_of(), local_seeds=st.booleans())
@examples(40, 150)
def test_no_placement_beats_the_bound(problem: Problem, local_seeds: bool) -> None:
    cluster, job, _ = problem
    bound_s = None
    for where in product(
        range(cluster.num_machines), repeat=job.num_samplers + job.trainers + job.num_servers
    ):
        placement = Placement(
            samplers=where[: job.num_samplers],
            trainers=where[job.num_samplers :][: job.trainers],
            servers=where[job.num_samplers + job.trainers :],
        )
        try:
            placement.check(cluster, job)
        except InfeasibleError:
            continue
        if bound_s is None:
            bound_s = time_bound_s(problem, local_seeds=local_seeds)
        seeds = local_first_seeds(problem, placement) if local_seeds else None
        objective = evaluate(problem, placement, seeds)
        assert objective.time_s >= bound_s * (1 - 1e-9)
    assume(bound_s is not None)


@given(problem=settings_of(), local_seeds=st.booleans(), m=st.integers(0, 1))
@examples(40, 100)
def test_more_bandwidth_never_raises_the_bound(problem: Problem, local_seeds: bool, m: int) -> None:
    cluster, job, profile = problem
    machines = list(cluster.machines)
    machines[m] = machines[m].model_copy(update={"nic_in": 2 * machines[m].nic_in})
    try:
        make_plan(problem, method="ifs", policy="oes", seed_mix="uniform")
    except InfeasibleError:
        assume(False)
    wider = Cluster(machines=tuple(machines))
    before = time_bound_s(problem, local_seeds=local_seeds)
    after = time_bound_s(Problem(wider, job, profile), local_seeds=local_seeds)
    assert after <= before * (1 + 1e-9)


def test_computing_alone_by_hand() -> None:
    profile = Profile(
        seeds_per_sampler=50,
        task_times={
            Role.STORE: {"default": TaskTime(mean=0.03)},
            Role.SAMPLER: {"default": TaskTime(mean=0.02), "fast": TaskTime(mean=0.01)},
            Role.TRAINER: {"default": TaskTime(mean=0.04), "fast": TaskTime(mean=0.03)},
            Role.SERVER: {"default": TaskTime(mean=0.005)},
            Role.RING: {"default": TaskTime(mean=0.002)},
        },
        store_traffic=StoreTraffic(bytes_per_seed=1.0),
        batch_traffic=BatchTraffic(bytes_per_seed=1.0),
    )
    cluster = Cluster(
        machines=tuple(
            Machine(name=kind, kind=kind, nic_in=1e9, nic_out=1e9) for kind in ("fast", "slow")
        )
    )

    def bound_s(**changes: object) -> float:
        job = Job.model_validate(
            {"trainers": 3, "samplers_per_trainer": 2, "batch_size": 100, "window": 0} | changes
        )
        return compute_bound_s(Problem(cluster, job, profile))

    assert bound_s(sync="ps") == pytest.approx(0.03 + 0.005)
    assert bound_s(sync="ring") == pytest.approx(0.03 + 2 * 2 * 0.002)
    assert bound_s(sync="ring", trainers=1) == pytest.approx(0.03)
    assert bound_s(sync="ps", batch_size=200) == pytest.approx(0.06 + 0.005)
    assert bound_s(sync="ps", window=1) == pytest.approx(0.04)
