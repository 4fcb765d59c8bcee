"""Figures of full-graph jobs, without a run and from one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.core.errors import SpecError
from headrace.core.full_graph import RowSwap, check_full_graph
from headrace.core.job import Role
from headrace.core.plan import Plan, problem_of
from headrace.core.profile import Problem
from headrace.core.trace import Trace
from headrace.graph.build.cover_sizes import cover_sizes
from headrace.graph.format.partitioned_graph import open_graph
from headrace.observability.trace_file import load_trace, save_trace
from headrace.planner.planner import make_plan
from headrace.profiling import measured_iteration_time_s, profile_trace
from headrace.profiling.graph_parts import with_parts
from headrace.profiling.trace_assembly import merge_records
from tests.unit.graph.small_graphs import NODE_TO_NODE, heterogeneous, homogeneous, write
from tests.unit.planner.small import cluster_of
from tests.unit.planner.test_full_graph import problem_with, profile_of


def test_parts_are_counted(tmp_path: Path) -> None:
    write(homogeneous(60, 400), tmp_path / "graph", 3)
    graph = open_graph(tmp_path / "graph")
    profile = with_parts(None, graph)
    figures = profile.full_graph
    assert figures is not None
    rows = cover_sizes(graph, range(3), NODE_TO_NODE)
    np.testing.assert_array_equal(figures.halo, rows.halo)
    np.testing.assert_array_equal(figures.cover, rows.total)
    assert sum(figures.nodes) == 60
    assert sum(figures.edges) == 400
    assert profile.task_time(Role.TRAINER, "any").mean == 0.0


def test_measured_figures_are_kept(tmp_path: Path) -> None:
    write(homogeneous(60, 400), tmp_path / "graph", 3)
    graph = open_graph(tmp_path / "graph")
    known = with_parts(None, graph)
    assert known.full_graph is not None
    swaps = {"swaps": [{"row_bytes": 8}], "shares": (0.5, 0.0, 0.5), "work": 20.0}
    measured = known.full_graph.model_validate(known.full_graph.model_dump() | swaps)
    again = with_parts(known.model_copy(update={"full_graph": measured}), graph)
    assert again.full_graph == measured


def test_rows_of_typed_graphs_are_counted_by_edge_type(tmp_path: Path) -> None:
    write(heterogeneous(), tmp_path / "graph", 2)
    graph = open_graph(tmp_path / "graph")
    figures = with_parts(None, graph).full_graph
    assert figures is not None
    assert set(figures.by_type) == {"/".join(each) for each in graph.edge_types}
    expected = {each: cover_sizes(graph, range(2), each).halo for each in graph.edge_types}
    for edge_type, rows in expected.items():
        name = "/".join(edge_type)
        np.testing.assert_array_equal(figures.by_type[name].halo, rows)
        swap = RowSwap(row_bytes=8, is_sum=False, edges=name)
        np.testing.assert_array_equal(figures.volumes(swap), 8 * rows.T)
        ordered = figures.ordered([1, 0]).volumes(swap)
        np.testing.assert_array_equal(ordered, 8 * rows.T[::-1, ::-1])
    np.testing.assert_array_equal(figures.halo, sum(expected.values()))
    check_full_graph((swap,), 2, figures)
    with pytest.raises(SpecError, match="no edge type 'a/b/c'"):
        check_full_graph((RowSwap(row_bytes=8, edges="a/b/c"),), 2, figures)


SWAPS = [{"row_bytes": 1e7}, {"row_bytes": 2e7, "is_sum": False}, {"row_bytes": 1e7, "is_back": 1}]


@pytest.fixture(scope="module")
def known() -> Problem:
    """A job with known times, which differ between its parts."""
    profile = profile_of(
        0.7,
        swaps=SWAPS,
        nodes=(100, 50, 300),
        edges=(300, 400, 500),
        shares=(0.2, 0.1, 0.3, 0.0, 0.2, 0.1, 0.1),
    )
    cluster = cluster_of(1.0, 0.5, 1.0)
    return problem_with(cluster, profile, SWAPS, iterations=20, model_bytes=3e7)


def test_a_simulated_run_gives_the_profile_that_it_was_simulated_with(
    known: Problem, tmp_path: Path
) -> None:
    plan = make_plan(known)
    found = headrace.simulate(*problem_of(plan), plan, "maxmin", iterations=20, record=True)
    save_trace(found.trace(), tmp_path / "trace.npz")
    trace = load_trace(tmp_path / "trace.npz")
    profile = profile_trace(trace, plan)
    assert profile.full_graph is not None
    assert plan.profile.full_graph is not None
    expected = plan.profile.full_graph
    assert profile.full_graph.swaps == plan.job.swaps
    assert profile.full_graph.shares == pytest.approx(expected.shares, abs=1e-4)
    assert profile.task_time(Role.TRAINER, "any").mean == pytest.approx(0.7)
    volumes = sum(float(expected.volumes(swap).sum()) for swap in plan.job.swaps)
    assert profile.full_graph.epoch_bytes == pytest.approx(volumes)
    assert profile.full_graph.delays == pytest.approx((0.0, 0.0, 0.0), abs=1e-3)
    assert profile.model_bytes == pytest.approx(3e7)
    again = headrace.simulate(*problem_of(plan).with_profile(profile), plan, "maxmin")
    assert again.iteration_time_s == pytest.approx(measured_iteration_time_s(trace), rel=0.01)


def records(trainer: int, delay_s: float = 0.0, num_swaps: int = 1) -> list[list[Any]]:
    """An epoch: 1 s of computing, a swap of 2 s of which 0.5 s are hidden, and 1 s."""
    name, sent = f"trainer{trainer}", [0, 0, 0]
    sent[(trainer + 1) % 3] = 4000
    begin_s = 10.0 + delay_s
    swaps: list[list[Any]] = [
        ["swap", name, 0, begin_s + 1, begin_s + 1.5, begin_s + 3, 400, 1, 0, sent]
    ] * num_swaps
    return [*swaps, ["exec", name, 0, begin_s, begin_s + 4], ["ring", name, 0, 13.9, 13.9, 90]]


def merged(plan: Plan, every: list[list[list[Any]]]) -> Trace:
    text = ["".join(json.dumps(each) + "\n" for each in own).encode() for own in every]
    return merge_records([(f"m{m}", own) for m, own in enumerate(text)], {}, plan)


def stages(trace: Trace, trainer: int) -> list[tuple[float, float]]:
    names = [f"trainer{trainer}", f"layer{trainer}.0", f"layer{trainer}.1"]
    tasks = [trace.task_names.index(name) for name in names]
    rows = [int(np.flatnonzero(trace.executions.task == task)[0]) for task in tasks]
    return [(trace.executions.start_s[row], trace.executions.end_s[row]) for row in rows]


def test_swaps_divide_a_step_into_layers(known: Problem) -> None:
    plan = make_plan(known)
    trace = merged(plan, [records(trainer) for trainer in range(3)])
    assert [swap.row_bytes for swap in trace.swaps] == [400.0]
    assert stages(trace, 1) == [(0.0, 1.0), (1.0, 1.5), (3.0, 4.0)]
    moved = [
        (trace.task_names[src], trace.task_names[dst], num_bytes)
        for src, dst, num_bytes in zip(
            trace.flows.src, trace.flows.dst, trace.flows.num_bytes, strict=True
        )
        if not trace.task_names[src].startswith("ring")
    ]
    assert sorted(moved) == [
        ("trainer0", "layer1.1", 4000.0),
        ("trainer1", "layer2.1", 4000.0),
        ("trainer2", "layer0.1", 4000.0),
    ]


def test_records_say_what_is_cut_in_slices(known: Problem) -> None:
    plan = make_plan(known)
    every = [records(trainer) for trainer in range(3)]
    for own in every:
        (swap,) = (each for each in own if each[0] == "swap")
        swap += ["", "columns"]
    (found,) = merged(plan, every).swaps
    assert found == RowSwap(row_bytes=400, slices="columns")


def test_epochs_whose_swaps_differ_stay_whole(known: Problem) -> None:
    plan = make_plan(known)
    trace = merged(plan, [records(0), records(1), records(2, num_swaps=2)])
    assert trace.swaps == ()
    assert {trace.task_roles[task] for task in trace.executions.task} == {"trainer", "ring"}


def test_runs_of_plans_without_parts_cannot_be_profiled(known: Problem) -> None:
    plan = make_plan(known)
    trace = merged(plan, [records(trainer) for trainer in range(3)])
    profile = plan.profile.model_copy(update={"full_graph": None})
    with pytest.raises(SpecError, match="not one of a full-graph job"):
        profile_trace(trace, plan.model_copy(update={"profile": profile}), 0)
