"""Tabulated loads equal sums over edges; local seeds use every part up equally; bounds hold."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from headrace.api.documents.load import load_cluster, load_job, load_profile
from headrace.core.cluster import Cluster
from headrace.core.job import Job
from headrace.core.placement import Placement
from headrace.core.plan import uniform_seeds
from headrace.core.profile import Problem, Profile
from headrace.core.tasks import build_task_graph
from headrace.costs import edge_volumes, nic_loads, task_machines
from headrace.planner.cost.lower_bound import load_bound
from headrace.planner.cost.nic_loads import build_load_model, port_loads
from headrace.planner.cost.seed_mix import local_first_seeds
from headrace.planner.methods.anneal import shortlist
from headrace.planner.methods.relaxed_start import relaxed_placement

EXAMPLES = Path(__file__).parents[4] / "examples"


def random_case(seed: int) -> tuple[Cluster, Job, Profile, Placement]:
    """A small job on unequal machines, placed anywhere."""
    rng = np.random.default_rng(seed)
    num = int(rng.integers(2, 6))
    trainers, per_trainer, servers = (int(rng.integers(1, high)) for high in (5, 4, 4))
    cluster = Cluster.model_validate(
        {
            "machines": [
                {"name": f"m{i}", "nic_in": rng.uniform(1e8, 1e9), "nic_out": rng.uniform(1e8, 1e9)}
                for i in range(num)
            ]
        }
    )
    job = Job.model_validate(
        {
            "trainers": trainers,
            "samplers_per_trainer": per_trainer,
            "sync": ["ps", "ring"][seed % 2],
            "parameter_servers": servers,
            "batch_size": 10 * per_trainer,
            "model_bytes": rng.uniform(1e6, 1e8),
        }
    )
    zero = {"default": 0.001}
    profile = Profile.model_validate(
        {
            "task_times": {"store": zero, "sampler": zero, "trainer": zero, "ps": zero},
            "store_traffic": {"bytes_per_seed": 1e6, "locality": rng.uniform(0, 1)},
            "batch_traffic": {"bytes_per_seed": 5e5},
        }
    )
    placement = Placement(
        samplers=tuple(int(m) for m in rng.integers(0, num, job.num_samplers)),
        trainers=tuple(int(m) for m in rng.integers(0, num, trainers)),
        servers=tuple(int(m) for m in rng.integers(0, num, job.num_servers)),
    )
    return cluster, job, profile, placement


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("local_seeds", [False, True])
def test_tables_equal_sums_over_edges(seed: int, local_seeds: bool) -> None:
    cluster, job, profile, placement = random_case(seed)
    problem, num = Problem(cluster, job, profile), cluster.num_machines
    seeds = local_first_seeds(problem, placement) if local_seeds else uniform_seeds(job, num)
    graph = build_task_graph(job, num, placement.ring_order)
    expected = nic_loads(
        graph, edge_volumes(graph, problem, seeds), task_machines(graph, placement), cluster
    )
    model = build_load_model(problem, local_seeds=local_seeds)
    np.testing.assert_allclose(port_loads(model, placement), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("seed", range(30))
def test_local_first_seeds_use_every_part_up_equally(seed: int) -> None:
    cluster, job, profile, placement = random_case(seed)
    seeds = local_first_seeds(Problem(cluster, job, profile), placement)
    assert (seeds >= 0).all()
    np.testing.assert_allclose(seeds.sum(axis=1), job.batch_size / job.samplers_per_trainer)
    np.testing.assert_allclose(
        seeds.sum(axis=0), job.batch_size * job.trainers / cluster.num_machines
    )


def every_placement(job: Job, num: int) -> list[Placement]:
    """All placements of a tiny job."""
    tasks = job.num_samplers + job.trainers + job.num_servers
    split = (job.num_samplers, job.num_samplers + job.trainers)
    return [
        Placement(samplers=at[: split[0]], trainers=at[split[0] : split[1]], servers=at[split[1] :])
        for at in product(range(num), repeat=tasks)
    ]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("local_seeds", [False, True])
def test_bound_is_below_every_placement_and_annealing_finds_the_best(
    seed: int, local_seeds: bool
) -> None:
    cluster, job, profile, _ = random_case(seed)
    hosts = cluster.machines[:3]
    cluster = Cluster(machines=hosts)
    job = job.model_copy(
        update={"trainers": 2, "samplers_per_trainer": 2, "parameter_servers": 1, "batch_size": 20}
    )
    problem = Problem(cluster, job, profile)
    model = build_load_model(problem, local_seeds=local_seeds)
    best = min(
        float(np.max(port_loads(model, placement)))
        for placement in every_placement(job, cluster.num_machines)
    )
    bound = load_bound(model)
    assert bound <= best * (1 + 1e-9)
    found, same_bound = shortlist(problem, seed=seed, local_seeds=local_seeds)
    assert same_bound == bound
    assert found[0].load_s == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("setting", ["testbed", "hetero", "sim1", "sim2"])
def test_shortlist_fits_and_is_deterministic(setting: str) -> None:
    folder = EXAMPLES / setting
    cluster = load_cluster(folder / "cluster.yaml")
    job = load_job(folder / "job.yaml")
    problem = Problem(cluster, job, load_profile(folder / "profile.yaml"))
    first = shortlist(problem, seed=3)
    assert first == shortlist(problem, seed=3)
    for candidate in first[0]:
        candidate.placement.check(cluster, job)
    assert first[0][0].load_s <= first[1] * 1.04


@pytest.mark.parametrize("seed", range(20))
def test_more_bandwidth_never_raises_the_bound(seed: int) -> None:
    cluster, job, profile, _ = random_case(seed)
    rng = np.random.default_rng(seed)
    wider = Cluster(
        machines=tuple(
            machine.model_copy(
                update={
                    "nic_in": machine.nic_in * rng.uniform(1, 3),
                    "nic_out": machine.nic_out * rng.uniform(1, 3),
                }
            )
            for machine in cluster.machines
        )
    )
    before, after = (
        load_bound(build_load_model(Problem(each, job, profile), local_seeds=False))
        for each in (cluster, wider)
    )
    assert after <= before * (1 + 1e-9)


@pytest.mark.parametrize("setting", ["testbed", "sim1", "sim2", "hetero"])
def test_the_relaxation_reaches_the_bound(setting: str) -> None:
    """What the counts promise, a placement keeps."""
    folder = EXAMPLES / setting
    cluster, job = load_cluster(folder / "cluster.yaml"), load_job(folder / "job.yaml")
    problem = Problem(cluster, job, load_profile(folder / "profile.yaml"))
    model = build_load_model(problem, local_seeds=False)
    bound_s = load_bound(model)
    placement = relaxed_placement(model, job, bound_s)
    assert placement is not None
    placement.check(cluster, job)
    loads = port_loads(model, placement)
    assert max(loads[0].max(), loads[1].max()) == pytest.approx(bound_s, rel=1e-8)
