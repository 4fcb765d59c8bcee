"""Files that version 0.1 wrote can still be read: graph, plan, run folder, checkpoint, trace."""

from __future__ import annotations

from pathlib import Path

import headrace
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.format.verify import verify
from headrace.observability.trace_file import load_trace
from headrace.runtime.run_dir.run_config import RunConfig
from headrace.runtime.run_dir.run_dir import RunDirectory
from headrace.training.checkpoint_files import newest_whole

FILES = Path(__file__).parent / "version_0_1"
RUN = RunDirectory(FILES / "run")


def test_graph_opens_and_has_no_errors() -> None:
    graph = open_graph(FILES / "parts")
    assert (graph.num_parts, graph.num_nodes) == (2, 600)
    assert verify(FILES / "parts") == []


def test_plan_loads_with_its_prediction() -> None:
    plan = headrace.load_plan(RUN.plan)
    assert plan.job.trainers == 2
    assert plan.placement.trainers == ("m0", "m1")
    assert plan.predicted is not None


def test_run_can_be_resumed_from_its_checkpoint() -> None:
    config = RunConfig.resumed(RUN)
    assert (config.checkpoint_every, config.script.name) == (5, "train.py")
    newest = newest_whole(RUN.checkpoints)
    assert newest is not None
    assert newest.sidecar.iteration == 40
    assert RUN.read_status().iterations == 40


def test_trace_has_all_executions() -> None:
    trace = load_trace(FILES / "run" / "trace.npz")
    for name in ("trainer0", "trainer1"):
        own = trace.executions.task == trace.task_names.index(name)
        assert trace.executions.iteration[own].tolist() == list(range(40))
