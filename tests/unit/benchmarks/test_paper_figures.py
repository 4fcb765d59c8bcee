"""The arithmetic behind the paper's figures, without any long rehearsal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper_figures import Effort, at_batch_size, with_pmr
from benchmarks.paper_pictures import (
    BOUND,
    SCHEMES,
    SETTINGS,
    Times,
    draw,
    gain_table,
    markdown,
    num_iterations,
    savings,
)
from benchmarks.planner import example
from headrace.core.job import Role
from headrace.core.plan import uniform_seeds
from headrace.core.profile import Problem
from headrace.core.tasks import EdgeKind, build_task_graph
from headrace.costs import edge_volumes, task_machines, task_times
from headrace.planner.methods import place


def test_epochs_are_those_of_the_paper() -> None:
    assert num_iterations(SETTINGS["sim1"], 1000) == 984  # as examples/sim1/job.yaml derives
    assert num_iterations(SETTINGS["sim2"], 500) == 60_359
    assert num_iterations(SETTINGS["sim2"], 250) == 120_718


def test_profiled_points_agree_with_the_examples() -> None:
    for name, setting in SETTINGS.items():
        _, job, profile = example(name)
        assert profile.seeds_per_sampler == setting.seeds_per_sampler
        assert job.batch_size == setting.seeds_per_sampler * job.samplers_per_trainer
        assert profile.store_traffic.variation.peak_to_mean == setting.profiled_pmr
        assert setting.profiled_pmr not in Effort().pmrs


@pytest.mark.parametrize("factor", [0.25, 1, 2])
def test_volumes_and_times_follow_the_batch_size(factor: float) -> None:
    def mean_volumes_and_times(problem: Problem) -> tuple[Any, Any, Any]:
        cluster, job, _ = problem
        graph = build_task_graph(job, cluster.num_machines)
        seeds = uniform_seeds(job, cluster.num_machines)
        machines = task_machines(graph, place("ifs", problem))
        times = task_times(graph, problem, machines, seeds)
        return graph, edge_volumes(graph, problem, seeds), times

    base = example("sim1")
    graph, volumes, times = mean_volumes_and_times(base)
    other = at_batch_size(base, round(1000 * factor))
    _, other_volumes, other_times = mean_volumes_and_times(other)
    sampled = (graph.kind == EdgeKind.GRAPH) | (graph.kind == EdgeKind.BATCH)
    assert other_volumes[sampled] == pytest.approx(factor * volumes[sampled])
    working = slice(
        0, graph.first_server
    )  # stores, samplers and trainers; the server sees no seeds
    assert other_times[working] == pytest.approx(factor * times[working])
    assert other_times[graph.first_server :] == pytest.approx(times[graph.first_server :])
    assert other_volumes[~sampled] == pytest.approx(volumes[~sampled])
    assert other[1].window == 0


def test_ratio_changes_the_spread_of_graph_data_only() -> None:
    base = example("sim2")
    _, job, profile = with_pmr(base, 3.0)
    assert job == base[1]
    assert profile.store_traffic.variation.peak_to_mean == 3.0
    assert profile.store_traffic.bytes_per_seed == base[2].store_traffic.bytes_per_seed
    assert profile.task_times[Role.STORE] == base[2].task_times[Role.STORE]
    assert profile.batch_traffic == base[2].batch_traffic


def test_savings_are_of_means_over_clusters() -> None:
    points: dict[str, Times] = {
        "250": {"ours": [1.0, 2.0], "dgtp": [2.0, 4.0]},
        "500": {"ours": [3.0, 3.0], "dgtp": [4.0, 4.0]},
    }
    assert savings(points, "ours", "dgtp") == {"mean": 0.375, "largest": 0.5, "smallest": 0.25}
    assert savings(points, "dgtp", "ours")["largest"] == pytest.approx(-0.3333)


def made_up() -> dict[str, Any]:
    times = {name: [60.0 + 10 * i] for i, name in enumerate([BOUND, *SCHEMES])}
    figures = {"batch_size": {"250": times, "500": times}, "pmr": {"1.0": times, "2.0": times}}
    return dict.fromkeys(SETTINGS, figures)


def test_table_has_a_row_for_every_baseline() -> None:
    lines = markdown(gain_table(made_up()), "pmr").splitlines()
    assert len(lines) == 2 + len(SCHEMES) - 1
    assert {line.count("|") for line in lines} == {6}
    assert "| 12 % (12 to 12) | 12 % (12 to 12) |  |  |" in lines[2]  # 70 s instead of 80 s


def test_picture_is_small(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "pmr.png"
    draw({"settings": made_up()}, "pmr", "ratio", path)
    assert 10_000 < path.stat().st_size < 200_000
