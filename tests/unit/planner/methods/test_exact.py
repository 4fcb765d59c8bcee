from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.api.documents.load import load_cluster, load_job, load_profile
from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import InfeasibleError, MissingExtraError, SpecError
from headrace.core.job import Job, Role, Sync
from headrace.core.placement import Placement
from headrace.core.plan import uniform_seeds
from headrace.core.profile import BatchTraffic, Problem, Profile, StoreTraffic, TaskTime
from headrace.core.tasks import build_task_graph
from headrace.costs import edge_volumes, nic_load_s, task_machines
from headrace.planner.cost.seed_mix import local_first_seeds
from headrace.planner.methods import place
from headrace.planner.methods.exact import solve
from tests.support.examples import examples

EXAMPLES = Path(__file__).parents[4] / "examples"


def cluster_of(*machines: tuple[int, int, float, float]) -> Cluster:
    return Cluster(
        machines=tuple(
            Machine(
                name=f"m{i}",
                resources={"cpu": cpu, "gpu": gpu},
                nic_in=nic_in * 1e9,
                nic_out=nic_out * 1e9,
            )
            for i, (cpu, gpu, nic_in, nic_out) in enumerate(machines)
        )
    )


def job_of(trainers: int, samplers: int, servers: int, model_bytes: float = 1e7) -> Job:
    return Job(
        trainers=trainers,
        samplers_per_trainer=samplers,
        sync=Sync.PS if servers else Sync.RING,
        parameter_servers=max(1, servers),
        batch_size=100,
        model_bytes=model_bytes,
        demands={
            Role.SAMPLER: {"cpu": 2},
            Role.TRAINER: {"cpu": 1, "gpu": 1},
            Role.SERVER: {"cpu": 1},
        },
    )


def profile_of(locality: float = 0.0, batch: float = 1e5) -> Profile:
    return Profile(
        task_times={role: {"default": TaskTime(mean=0.01)} for role in Role},
        store_traffic=StoreTraffic(bytes_per_seed=1e5, locality=locality),
        batch_traffic=BatchTraffic(bytes_per_seed=batch),
    )


def load_s(problem: Problem, placement: Placement, local_seeds: bool) -> float:
    """The largest load edge by edge, as the simulator would have it."""
    cluster, job, _ = problem
    num = cluster.num_machines
    seeds = local_first_seeds(problem, placement) if local_seeds else uniform_seeds(job, num)
    graph = build_task_graph(job, num, placement.ring_order)
    machines = task_machines(graph, placement)
    return nic_load_s(graph, edge_volumes(graph, problem, seeds), machines, cluster)


def every_placement(cluster: Cluster, job: Job) -> list[Placement]:
    machines = range(cluster.num_machines)
    found = []
    for where in product(machines, repeat=job.num_samplers + job.trainers + job.num_servers):
        placement = Placement(
            samplers=where[: job.num_samplers],
            trainers=where[job.num_samplers :][: job.trainers],
            servers=where[job.num_samplers + job.trainers :],
        )
        try:
            placement.check(cluster, job)
        except InfeasibleError:
            continue
        found.append(placement)
    return found


nics = st.sampled_from([1.0, 2.0, 5.0])
clusters = st.lists(
    st.tuples(st.integers(2, 8), st.integers(0, 2), nics, nics), min_size=2, max_size=3
).map(lambda machines: cluster_of(*machines))
jobs = st.builds(
    job_of,
    trainers=st.integers(1, 2),
    samplers=st.integers(1, 2),
    servers=st.integers(0, 1),
    model_bytes=st.sampled_from([0.0, 1e6, 1e8]),
)
profiles = st.builds(
    profile_of, locality=st.sampled_from([0.0, 0.3, 0.9]), batch=st.sampled_from([0.0, 1e4, 1e5])
)


@given(cluster=clusters, job=jobs, profile=profiles, local_seeds=st.booleans())
@examples(25, 120)
def test_it_is_the_best_of_all_placements(
    cluster: Cluster, job: Job, profile: Profile, local_seeds: bool
) -> None:
    everything, problem = every_placement(cluster, job), Problem(cluster, job, profile)
    assume(everything)
    best_s = min(load_s(problem, each, local_seeds) for each in everything)
    found = solve(problem, local_seeds=local_seeds)
    found.placement.check(cluster, job)
    assert found.proven
    assert found.objective_s == pytest.approx(best_s, rel=1e-9)
    assert found.bound_s <= best_s * (1 + 1e-12)
    assert load_s(problem, found.placement, local_seeds) == pytest.approx(
        found.objective_s, rel=1e-12
    )


wide = st.lists(
    st.tuples(st.integers(4, 16), st.integers(1, 4), nics, nics), min_size=3, max_size=6
).map(lambda machines: cluster_of(*machines))


@pytest.mark.slow
@given(
    cluster=wide,
    trainers=st.integers(2, 6),
    samplers=st.integers(1, 3),
    servers=st.integers(0, 2),
    profile=profiles,
    seed=st.integers(0, 2),
)
@examples(8, 80)
def test_it_is_never_worse_than_another_method(
    cluster: Cluster, trainers: int, samplers: int, servers: int, profile: Profile, seed: int
) -> None:
    problem = Problem(cluster, job_of(trainers, samplers, servers), profile)
    try:
        others = [place(name, problem, seed) for name in ("anneal", "colocate", "ifs")]
    except InfeasibleError:
        assume(False)
    found = solve(problem)
    assert found.proven
    for placement in others:
        assert found.objective_s <= load_s(problem, placement, False) * (1 + 1e-9)


@pytest.mark.slow
@given(
    cluster=wide,
    trainers=st.integers(2, 5),
    servers=st.integers(0, 1),
    local_seeds=st.booleans(),
    data=st.data(),
)
@examples(15, 80)
def test_more_bandwidth_never_raises_it(
    cluster: Cluster, trainers: int, servers: int, local_seeds: bool, data: st.DataObject
) -> None:
    job, profile = job_of(trainers, 2, servers), profile_of(0.4)
    m = data.draw(st.integers(0, cluster.num_machines - 1))
    way = data.draw(st.sampled_from(["nic_in", "nic_out"]))
    machine = cluster.machines[m]
    faster = machine.model_copy(update={way: getattr(machine, way) * 1.7})
    wider = Cluster(machines=(*cluster.machines[:m], faster, *cluster.machines[m + 1 :]))
    try:
        before = solve(Problem(cluster, job, profile), local_seeds=local_seeds)
    except InfeasibleError:
        assume(False)
    after = solve(Problem(wider, job, profile), local_seeds=local_seeds)
    assert after.objective_s <= before.objective_s * (1 + 1e-9)


@pytest.mark.parametrize("setting", ["testbed", "hetero", "sim1"])
def test_the_paper_settings_are_proven(setting: str) -> None:
    folder = EXAMPLES / setting
    problem = Problem(
        load_cluster(folder / "cluster.yaml"),
        load_job(folder / "job.yaml"),
        load_profile(folder / "profile.yaml"),
    )
    found = solve(problem)
    assert found.proven
    assert solve(problem) == found


def test_out_of_time_it_still_answers() -> None:
    folder = EXAMPLES / "sim2"
    cluster, job = load_cluster(folder / "cluster.yaml"), load_job(folder / "job.yaml")
    profile = load_profile(folder / "profile.yaml")
    found = solve(Problem(cluster, job, profile), time_limit_s=1e-3)
    found.placement.check(cluster, job)
    assert 0 <= found.bound_s <= found.objective_s


def test_nothing_on_the_network_needs_no_search() -> None:
    found = solve(Problem(cluster_of((8, 2, 1.0, 1.0)), job_of(2, 1, 1), profile_of()))
    assert (found.objective_s, found.bound_s, found.proven) == (0.0, 0.0, True)


def test_a_measured_matrix_with_local_seeds_is_refused() -> None:
    profile = profile_of().model_copy(
        update={"store_traffic": StoreTraffic(matrix=((1e5, 1e4), (1e4, 1e5)))}
    )
    cluster = cluster_of((8, 2, 1.0, 1.0), (8, 2, 1.0, 1.0))
    with pytest.raises(SpecError, match="use the method anneal, or a uniform seed mix"):
        solve(Problem(cluster, job_of(2, 1, 1), profile), local_seeds=True)
    assert solve(Problem(cluster, job_of(2, 1, 1), profile)).proven


def test_without_or_tools_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    cluster = cluster_of((8, 2, 1.0, 1.0), (8, 2, 1.0, 1.0))
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[exact\]'"):
        solve(Problem(cluster, job_of(2, 1, 1), profile_of()))


def test_equal_machines_are_told_apart_by_nothing_but_their_number() -> None:
    cluster = cluster_of(*[(8, 2, 1.0, 1.0)] * 4)
    found = solve(Problem(cluster, job_of(4, 2, 0), profile_of()))
    counts = np.bincount(found.placement.samplers, minlength=4)
    assert list(counts) == sorted(counts, reverse=True)
