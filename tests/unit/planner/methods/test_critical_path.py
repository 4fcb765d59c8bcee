"""The critical path against a plain walk over the execution DAG."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from headrace.core.job import Role, Sync
from headrace.core.placement import Placement
from headrace.core.profile import Problem, TaskTime
from headrace.core.tasks import EdgeKind
from headrace.planner.methods.critical_path import CriticalPath
from headrace.simulator import build_instance, simulate
from tests.oracle.instances import Case, random_case
from tests.oracle.naive import factor
from tests.oracle.theory import ring_width
from tests.support.path_cost import path_cost_s


def naive_path_s(case: Case, placement: Placement, num_iterations: int, seed: int) -> float:
    """Eq. 26 edge by edge, and the longest path vertex by vertex."""
    instance, graph = build_instance(
        case.problem, placement, num_iterations=num_iterations, seed=seed
    )
    machine = instance.task_machine.tolist()
    crossing = [
        bool(
            machine[graph.src[e]] != machine[graph.dst[e]]
            and graph.kind[e] != EdgeKind.ORDER
            and instance.edge_bytes[e] > 0
        )
        for e in range(graph.num_edges)
    ]
    deg_out: dict[int, float] = defaultdict(float)
    deg_in: dict[int, float] = defaultdict(float)
    chunks = 2 * (graph.num_trainers - 1)
    for e in range(graph.num_edges):
        if crossing[e]:
            counted = 1.0
            if graph.kind[e] == EdgeKind.RING:
                counted = ring_width(graph.num_trainers) / chunks
            deg_out[machine[graph.src[e]]] += counted
            deg_in[machine[graph.dst[e]]] += counted

    def volume(e: int, n: int) -> float:
        return float(instance.edge_bytes[e]) * factor(instance, int(instance.edge_table[e]), e, n)

    def weight_s(e: int, n: int) -> float:
        a, b = machine[graph.src[e]], machine[graph.dst[e]]
        rate = min(
            instance.nic_in_bytes_per_s[b] / deg_in[b], instance.nic_out_bytes_per_s[a] / deg_out[a]
        )
        return float(volume(e, n) / rate)

    into: dict[int, list[int]] = defaultdict(list)
    for e in range(graph.num_edges):
        into[int(graph.dst[e])].append(e)
    task_end: dict[tuple[int, int], float] = {}
    flow_end: dict[tuple[int, int], float] = {}
    for n in range(num_iterations):
        for j in range(graph.num_tasks):
            begin = task_end.get((j, n - 1), 0.0)
            for e in into[j]:
                at = n - int(graph.lag[e])
                if at < 0:
                    continue
                end = task_end[int(graph.src[e]), at]
                if crossing[e]:
                    end = max(end, flow_end.get((e, at - 1), 0.0)) + weight_s(e, at)
                    flow_end[e, at] = end
                begin = max(begin, end)
            task_end[j, n] = begin + float(instance.task_time_s[j])
    return max(task_end.values())


def placements(case: Case, num: int) -> list[Placement]:
    rng, job = np.random.default_rng(0), case.problem.job
    return [
        Placement(
            samplers=tuple(rng.integers(0, hosts, size=job.num_samplers).tolist()),
            trainers=tuple(rng.integers(0, hosts, size=job.trainers).tolist()),
            servers=tuple(rng.integers(0, hosts, size=job.num_servers).tolist()),
        )
        for hosts in rng.integers(1, case.problem.cluster.num_machines + 1, size=num)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("sync", list(Sync))
@pytest.mark.parametrize("seed", range(25))
def test_agrees_with_the_plain_walk(sync: Sync, seed: int) -> None:
    case = random_case(seed, sync=sync)
    path = CriticalPath(case.problem, num_iterations=4, seed=seed)
    for placement in placements(case, 4):
        expected_s = naive_path_s(case, placement, 4, seed)
        assert path.length_s(placement) == pytest.approx(expected_s, rel=1e-12)


@pytest.mark.parametrize("sync", list(Sync))
@pytest.mark.parametrize("seed", range(25))
def test_bounds_the_makespan_under_oes(sync: Sync, seed: int) -> None:
    """Theorem 3; it holds for varying volumes too, if the path draws the same ones."""
    case = random_case(seed, sync=sync)
    times = {
        role: {kind: TaskTime(mean=time.mean) for kind, time in by_kind.items()}
        for role, by_kind in case.problem.profile.task_times.items()
    }
    profile = case.problem.profile.model_copy(update={"task_times": times})
    problem = case.problem._replace(profile=profile)
    path = CriticalPath(problem, num_iterations=6, seed=seed)
    for placement in placements(case, 4):
        instance, _ = build_instance(problem, placement, num_iterations=6, window=0, seed=seed)
        makespan_s = simulate(instance, "oes").makespan_s
        assert makespan_s <= path.length_s(placement) * (1 + 1e-9)


def test_excess_of_every_resource_raises_the_cost() -> None:
    case = random_case(1, sync=Sync.PS)
    machines = tuple(
        machine.model_copy(update={"resources": {"cpu": 2.0, "gpu": 4.0}})
        for machine in case.problem.cluster.machines
    )
    cluster = case.problem.cluster.model_copy(update={"machines": machines})
    demands = {Role.SAMPLER: {"cpu": 1.0}, Role.TRAINER: {"cpu": 1.0, "gpu": 3.0}}
    job = case.problem.job.model_copy(
        update={"trainers": 2, "samplers_per_trainer": 2, "parameter_servers": 1}
    ).model_copy(update={"demands": demands})
    path = CriticalPath(Problem(cluster, job, case.problem.profile))
    crowded = Placement(samplers=(0,) * 4, trainers=(0, 0), servers=(0,))
    # 6 cores wanted of 2, 6 GPUs of 4: 200 % and 50 % too much.
    assert path_cost_s(path, cluster, job, crowded) == pytest.approx(path.length_s(crowded) * 3.5)
    spread = Placement(samplers=(0, 0, 1, 1), trainers=(0, 1), servers=(0,))
    # Both machines: 3 cores of 2, 3 GPUs of 4.
    assert path_cost_s(path, cluster, job, spread) == pytest.approx(path.length_s(spread) * 2.0)
