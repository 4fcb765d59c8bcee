"""What every placement method promises; a new method is covered once it is registered."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import InfeasibleError, SpecError
from headrace.core.job import Job, Role, Sync
from headrace.core.profile import BatchTraffic, Problem, Profile, StoreTraffic, TaskTime
from headrace.planner.methods import PLACEMENT_METHODS, place
from tests.support.examples import examples

METHODS = pytest.mark.parametrize("method", sorted(PLACEMENT_METHODS))

PROFILE = Profile(
    task_times={
        role: {"default": TaskTime(mean=0.01)}
        for role in (Role.STORE, Role.SAMPLER, Role.TRAINER, Role.SERVER)
    },
    store_traffic=StoreTraffic(bytes_per_seed=1e5),
    batch_traffic=BatchTraffic(bytes_per_seed=1e5),
)


@pytest.fixture(scope="module", autouse=True)
def few_steps() -> Iterator[None]:
    """What a search promises does not depend on how long it searches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.planner.methods.etp.STEPS", 200)
        yield


def cluster_of(*resources: Mapping[str, float]) -> Cluster:
    return Cluster(
        machines=tuple(
            Machine(name=f"m{i}", resources=amounts, nic_in=1e9, nic_out=1e9)
            for i, amounts in enumerate(resources)
        )
    )


def job_of(trainers: int, samplers: int, servers: int, **demands: Mapping[str, float]) -> Job:
    return Job(
        trainers=trainers,
        samplers_per_trainer=samplers,
        sync=Sync.PS if servers else Sync.RING,
        parameter_servers=max(servers, 1),
        batch_size=100,
        demands={Role(role): amounts for role, amounts in demands.items()},
    )


amounts = st.fixed_dictionaries({"cpu": st.integers(0, 3), "gpu": st.integers(0, 1)})
jobs = st.builds(
    lambda trainers, samplers, servers, store, sampler, trainer, server: job_of(
        trainers, samplers, servers, store=store, sampler=sampler, trainer=trainer, ps=server
    ),
    trainers=st.integers(1, 4),
    samplers=st.integers(1, 3),
    servers=st.integers(0, 2),
    store=st.fixed_dictionaries({"cpu": st.integers(0, 1)}),
    sampler=amounts,
    trainer=amounts,
    server=amounts,
)
clusters = st.lists(
    st.fixed_dictionaries({"cpu": st.integers(0, 9), "gpu": st.integers(0, 3)}),
    min_size=1,
    max_size=4,
).map(lambda machines: cluster_of(*machines))


def fits_somehow(cluster: Cluster, job: Job) -> bool:
    """Whether any counts per machine fit, by trying all of them."""

    def need(role: Role) -> np.ndarray:
        return np.array([job.demand(role).get(name, 0.0) for name in ("cpu", "gpu")])

    sampler, trainer, server = need(Role.SAMPLER), need(Role.TRAINER), need(Role.SERVER)
    everything = (job.num_samplers, job.trainers, job.num_servers)
    packed = {(0, 0, 0)}
    for machine in cluster.hosts:
        free = np.array([machine.resources[name] for name in ("cpu", "gpu")]) - need(Role.STORE)
        if (free < 0).any():
            return False
        here = [
            counts
            for counts in product(*(range(total + 1) for total in everything))
            if (counts[0] * sampler + counts[1] * trainer + counts[2] * server <= free).all()
        ]
        packed = {
            (a + x, b + y, c + z)
            for (a, b, c), (x, y, z) in product(packed, here)
            if a + x <= everything[0] and b + y <= everything[1] and c + z <= everything[2]
        }
    return everything in packed


@METHODS
@given(cluster=clusters, job=jobs, seed=st.integers(0, 3))
@examples(25, 400)
def test_places_all_tasks_within_capacity_exactly_when_that_is_possible(
    method: str, cluster: Cluster, job: Job, seed: int
) -> None:
    if fits_somehow(cluster, job):
        place(method, Problem(cluster, job, PROFILE), seed).check(cluster, job)
    else:
        with pytest.raises(InfeasibleError) as error:
            place(method, Problem(cluster, job, PROFILE), seed)
        assert re.search(r"\d", error.value.problem)


@METHODS
@given(cluster=clusters, job=jobs)
@examples(25, 200)
def test_lowering_trainers_as_the_error_says_makes_it_fit(
    method: str, cluster: Cluster, job: Job
) -> None:
    try:
        place(method, Problem(cluster, job, PROFILE))
    except InfeasibleError as error:
        advice = re.search(r"lower trainers from (\d+) to (\d+)", error.remedy)
        if advice is None:
            return
        assert int(advice[1]) == job.trainers
        fewer = job.model_copy(update={"trainers": int(advice[2])})
        place(method, Problem(cluster, fewer, PROFILE)).check(cluster, fewer)


@METHODS
def test_equal_arguments_give_equal_placements(method: str) -> None:
    cluster = cluster_of(*({"cpu": 4.0 + m % 5, "gpu": 1.0 + m % 3} for m in range(12)))
    job = job_of(8, 2, 1, sampler={"cpu": 2}, trainer={"cpu": 1, "gpu": 1}, ps={"cpu": 1})
    for seed in range(5):
        first = place(method, Problem(cluster, job, PROFILE), seed)
        assert place(method, Problem(cluster, job, PROFILE), seed) == first


@METHODS
def test_fractions_of_a_core_are_counted_without_rounding_errors(method: str) -> None:
    cluster = cluster_of({"cpu": 1.0})
    job = job_of(5, 1, 0, sampler={"cpu": 0.1}, trainer={"cpu": 0.1})
    place(method, Problem(cluster, job, PROFILE)).check(cluster, job)


@METHODS
@pytest.mark.parametrize(
    ("cluster", "job", "problem", "remedy"),
    [
        pytest.param(
            cluster_of({"gpu": 4}, {"gpu": 4}),
            job_of(9, 1, 0, trainer={"gpu": 1}),
            "the job needs 9 gpu, the cluster has 8 gpu beside its stores, 1 gpu short",
            "lower trainers from 9 to 8, or add a machine",
            id="too few in all",
        ),
        pytest.param(
            cluster_of(*[{"cpu": 10}] * 1000),
            job_of(2501, 1, 0, trainer={"cpu": 4}),
            "the job needs 10004 cpu, the cluster has 10000 cpu beside its stores, 4 cpu short",
            "lower trainers from 2501 to 2000, or add a machine",
            id="too few in all of many",
        ),
        pytest.param(
            cluster_of({"gpu": 2}, {"gpu": 2}),
            job_of(1, 1, 0, trainer={"gpu": 3}),
            "a trainer needs 3 gpu, no machine has more than 2 gpu beside its store, 1 gpu short",
            "lower demands.trainer.gpu to 2 or add a larger machine",
            id="too few on one",
        ),
        pytest.param(
            cluster_of({"gpu": 1, "cpu": 1}, {"cpu": 4}),
            job_of(1, 1, 0, trainer={"gpu": 1, "cpu": 2}),
            "a trainer needs 2 cpu, 1 gpu on one machine, and no machine has them all",
            "lower demands.trainer, or add a machine that has all of them",
            id="never together",
        ),
        pytest.param(
            cluster_of({"cpu": 3}, {"cpu": 3}),
            job_of(1, 3, 0, sampler={"cpu": 2}),
            "2 of 3 samplers fit beside the other tasks, 1 too many; the job needs 6 cpu of the "
            "cluster's 6 cpu, but no machine has another 2 cpu left",
            "add machines, or lower the demands of the job: not even one trainer fits",
            id="pieces too small",
        ),
        pytest.param(
            cluster_of({"cpu": 5}, {"cpu": 5}),
            job_of(1, 1, 3, ps={"cpu": 3}),
            "2 of 3 parameter servers fit beside the other tasks, 1 too many; the job needs 9 cpu "
            "of the cluster's 10 cpu, but no machine has another 3 cpu left",
            "add machines, or lower the demands of the job: not even one trainer fits",
            id="pieces too small for servers",
        ),
        pytest.param(
            cluster_of({"memory": 8e9}),
            job_of(1, 1, 0, store={"memory": 1e10}),
            "the store on m0 needs 10 GB memory, the machine has 8 GB memory, 2 GB memory short",
            "lower demands.store.memory or remove m0 from the cluster",
            id="no room for a store",
        ),
    ],
)
def test_an_error_names_the_short_resource_in_figures(
    method: str, cluster: Cluster, job: Job, problem: str, remedy: str
) -> None:
    with pytest.raises(InfeasibleError) as error:
        place(method, Problem(cluster, job, PROFILE))
    assert (error.value.problem, error.value.remedy) == (problem, remedy)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"'best': use one of .*colocate, .*ifs"):
        place("best", Problem(cluster_of({}), job_of(1, 1, 0), PROFILE))


def test_methods_are_registered_under_their_own_name() -> None:
    assert all(method.name == name for name, method in PLACEMENT_METHODS.items())
