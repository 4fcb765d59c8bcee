"""Plans of full-graph jobs from a graph, and beside those of sampled jobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.api.full_graph_plan import compare_epochs
from headrace.api.plan import diff_plans, plan_summary
from headrace.cli.output.plan_tables import _decision
from headrace.core.errors import SpecError
from headrace.core.job import Job
from headrace.core.plan import Plan
from headrace.core.profile import Problem
from headrace.graph.build.cover_sizes import cover_sizes
from headrace.graph.format.partitioned_graph import open_graph
from headrace.planner.planner import make_plan
from tests.unit.graph.small_graphs import NODE_TO_NODE, homogeneous, write
from tests.unit.planner.small import CLUSTER, JOB, cluster_of, profile_of
from tests.unit.planner.test_full_graph import problem_with
from tests.unit.planner.test_full_graph import profile_of as full_graph_profile

JOB_OF_PARTS = Job.model_validate(
    {"kind": "full-graph", "trainers": 3, "swaps": [8, 4], "iterations": 4, "parallelism": "rows"}
)


def test_bytes_are_those_of_the_partitions(tmp_path: Path) -> None:
    write(homogeneous(60, 400), tmp_path / "graph", 3)
    plan = headrace.plan(cluster_of(1.0, 0.25, 1.0), JOB_OF_PARTS, graph=tmp_path / "graph")
    rows = cover_sizes(open_graph(tmp_path / "graph"), range(3), NODE_TO_NODE).total
    epoch = plan_summary(plan)["epoch"]
    by_machine = epoch["row_bytes"]
    # Forward from senders to receivers, and back.
    both = 4 * (8 + 4) * (rows.sum(axis=0) + rows.sum(axis=1))
    hosts = [host.name for host in plan.cluster.hosts]
    for part, machine in enumerate(plan.parts or ()):
        assert by_machine[hosts[machine]]["sent_bytes"] == both[part]
        assert by_machine[hosts[machine]]["received_bytes"] == both[part]
    assert plan.network_bytes == both.sum()
    assert not epoch["is_computing_known"]
    assert np.array(plan.job.swaps).shape[0] == 4


def test_random_edges_are_divided_by_features(tmp_path: Path) -> None:
    write(homogeneous(60, 900), tmp_path / "graph", 3)
    # Three trainers have as many columns each.
    settings = JOB_OF_PARTS.model_dump() | {"swaps": [9, 6]}
    jobs = [Job.model_validate(settings | {"parallelism": each}) for each in ("auto", "rows")]
    plan, rows = (
        headrace.plan(cluster_of(1.0, 1.0, 1.0), job, graph=tmp_path / "graph") for job in jobs
    )
    assert plan_summary(plan)["epoch"]["bytes_of_divided_rows"] == [24.0, 36.0]
    assert _decision(plan)["parallelism"] == "features of rows of 24 B, 36 B"
    assert _decision(rows)["parallelism"] == "rows"
    # Each column of a row goes to its trainer and back, in both directions.
    assert plan.network_bytes == 2 * 2 * 60 * 4 * (9 + 6) * 2 / 3
    assert rows.network_bytes > plan.network_bytes


def test_full_graph_jobs_need_the_graph() -> None:
    with pytest.raises(SpecError, match="--graph"):
        headrace.plan(CLUSTER, JOB_OF_PARTS)


def test_settings_of_sampled_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="those of sampled jobs"):
        headrace.plan(CLUSTER, JOB_OF_PARTS, graph=tmp_path, traffic="safe")


def test_simulations_need_swaps() -> None:
    job = JOB_OF_PARTS.model_copy(update={"swaps": ()})
    with pytest.raises(SpecError, match="add `swaps`"):
        headrace.simulate(CLUSTER, job, full_graph_profile())


def plans(full_s: float, source: str = "measured", seeds: int = 3000) -> tuple[Plan, Plan]:
    measured = {"source": source}
    full = make_plan(
        problem_with(
            cluster_of(1.0, 1.0, 1.0), full_graph_profile(full_s).model_copy(update=measured), (8,)
        )
    )
    known = profile_of(bytes_per_seed=0.0).model_copy(
        update={"source": "measured", "part_seeds": (seeds, 0, 0) if seeds else None}
    )
    return full, make_plan(Problem(CLUSTER, JOB, known), method="colocate", policy="maxmin")


@pytest.mark.parametrize(("full_s", "words"), [(1e3, "at most"), (1e-6, "only if the full graph")])
def test_epochs_are_compared(full_s: float, words: str) -> None:
    full, sampled = plans(full_s)
    found = diff_plans(full, sampled)
    assert found.saving is None
    assert found.epochs is not None
    # 3000 seeds in batches of 3 x 100.
    assert "in 10 iterations" in found.epochs
    assert words in found.epochs
    assert compare_epochs(sampled, full) == found.epochs
    assert compare_epochs(full, full) is None


def test_epochs_of_unmeasured_plans_are_not_compared() -> None:
    assert "the full-graph plan has no measured" in str(compare_epochs(*plans(1.0, "synthetic")))
    assert "number of training nodes" in str(compare_epochs(*plans(1.0, seeds=0)))
