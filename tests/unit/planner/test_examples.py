"""Every example loads, fits its cluster, and is bound by the network as in the paper."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml

from examples.draw_cluster import NUM_MACHINES, draw
from headrace.core.cluster import Cluster
from headrace.core.job import Job, Sync
from headrace.core.plan import uniform_seeds
from headrace.core.profile import Problem, Profile
from headrace.core.tasks import build_task_graph
from headrace.costs import edge_volumes, nic_load_s, task_machines, task_times
from headrace.planner.methods import place

EXAMPLES = Path(__file__).parents[3] / "examples"
STARTING_METHODS = ("colocate", "ifs")
"""What every search starts from; searches have tests of their own."""
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/job.yaml"))


def load(name: str) -> Problem:
    def read(what: str) -> object:
        return yaml.safe_load((EXAMPLES / name / f"{what}.yaml").read_text())

    return Problem(
        Cluster.model_validate(read("cluster")),
        Job.model_validate(read("job")),
        Profile.model_validate(read("profile")),
    )


def test_all_examples_are_there() -> None:
    assert NAMES == ["hetero", "scale1024", "sim1", "sim2", "testbed"]


@pytest.mark.parametrize("method", STARTING_METHODS)
@pytest.mark.parametrize("name", NAMES)
def test_an_example_fits_and_is_bound_by_the_network(name: str, method: str) -> None:
    problem = load(name)
    cluster, job, _ = problem
    placement = place(method, problem)
    placement.check(cluster, job)
    graph = build_task_graph(job, cluster.num_machines, placement.ring_order)
    machines, seeds = task_machines(graph, placement), uniform_seeds(job, cluster.num_machines)
    load_s = nic_load_s(graph, edge_volumes(graph, problem, seeds), machines, cluster)
    times = task_times(graph, problem, machines, seeds)
    assert load_s > 4 * times.max()


@pytest.mark.parametrize(
    ("name", "machines", "trainers", "samplers", "servers"),
    [
        ("testbed", 4, 6, 12, 1),
        ("hetero", 4, 8, 16, 0),
        ("sim1", 8, 16, 32, 1),
        ("sim2", 16, 20, 80, 1),
        ("scale1024", 1024, 1280, 5120, 4),
    ],
)
def test_sizes_are_those_of_the_paper(
    name: str, machines: int, trainers: int, samplers: int, servers: int
) -> None:
    cluster, job, _ = load(name)
    assert cluster.num_machines == machines
    assert (job.trainers, job.num_samplers, job.num_servers) == (trainers, samplers, servers)


def test_on_the_testbed_two_trainers_cannot_keep_both_samplers() -> None:
    placement = place("colocate", load("testbed"))
    beside = np.array(placement.samplers).reshape(-1, 2) == np.array(placement.trainers)[:, None]
    assert sorted(beside.sum(axis=1).tolist()) == [1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("features", "classes", "names"), [(100, 47, ["testbed", "sim1"]), (128, 172, ["sim2"])]
)
def test_model_bytes_are_those_of_graphsage(features: int, classes: int, names: list[str]) -> None:
    widths = [features, 256, 256, classes]
    num = sum(2 * a * b + b for a, b in pairwise(widths))
    for name in names:
        assert load(name)[1].model_bytes == 4 * num


@pytest.mark.parametrize("setting", sorted(NUM_MACHINES))
def test_the_drawn_clusters_are_what_the_script_draws(setting: str) -> None:
    assert draw(setting, seed=0) == load(setting)[0]
    assert draw(setting, seed=1) == draw(setting, seed=1) != draw(setting, seed=2)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("setting", sorted(NUM_MACHINES))
def test_ten_draws_are_feasible_for_every_method(setting: str, seed: int) -> None:
    cluster, (_, job, profile) = draw(setting, seed), load(setting)
    for method in STARTING_METHODS:
        place(method, Problem(cluster, job, profile)).check(cluster, job)


def test_the_ring_needs_no_parameter_server() -> None:
    assert load("hetero")[1].sync is Sync.RING
