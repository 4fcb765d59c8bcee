"""With one or two parameter servers, trainers on four Ray nodes learn as in a ring and as alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Now: PyG warns of what it imports, and warnings are errors in tests.
pytest.importorskip("torch_geometric.nn")

from benchmarks.cluster_bed import Layout, Run, make_plan, trace_of
from benchmarks.cluster_checks import gradient_difference, left_over
from benchmarks.cluster_runtime import is_placed
from headrace.api.graph import partition
from headrace.core.job import Role
from headrace.profiling import profile_trace
from headrace.runtime.testbed import Testbed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

MODEL = {"features": 64, "classes": 16, "width": 8, "fanouts": [10, 5]}
CONFIG = {**MODEL, "task": "gradients", "epochs": 1, "by_steps": True}
SEEDS = (1, 2, 3, 4, 5, 6)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph") / "parts"
    partition("generated:nodes=2e4,edges=4e5,features=64", folder, 4)
    return folder


@pytest.fixture(scope="module")
def ring(testbed: Testbed, graph: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Parameters after an epoch in a ring."""
    layout = Layout(seeds=SEEDS)
    run = Run(testbed, make_plan(layout, 300), graph, tmp_path_factory.mktemp("ring"), CONFIG)
    return said(run.end())["parameters"]  # type: ignore[no-any-return]


def said(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "gradients-0.json").read_text())
    return found


@pytest.mark.parametrize("servers", [("m3",), ("m0", "m3")], ids=["one", "two"])
def test_gradients_and_parameters_are_those_of_one_process_and_of_a_ring(
    testbed: Testbed, graph: Path, ring: list[Any], tmp_path: Path, servers: tuple[str, ...]
) -> None:
    plan = make_plan(Layout(servers=servers, seeds=SEEDS), 300)
    run = Run(testbed, plan, graph, tmp_path, CONFIG)
    folder = run.end()
    assert gradient_difference(folder, graph, CONFIG) <= 1e-5
    parameters = said(folder)["parameters"]
    for ours, theirs in zip(parameters, ring, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert is_placed(run, folder)
    assert not left_over(testbed)

    num_steps, num_bytes = len(said(folder)["seeds"]), 4 * sum(map(len, parameters))
    trace = trace_of(folder)
    names = np.array(trace.task_names)
    done = names[trace.executions.task].tolist()
    for p in range(len(servers)):
        assert done.count(f"ps{p}") == num_steps
    assert trace.local is not None
    flows = [
        (names[flow.src[i]], names[flow.dst[i]], flow.num_bytes[i])
        for flow in (trace.flows, trace.local)
        for i in range(len(flow.src))
    ]
    for trainer in range(3):
        for p in range(len(servers)):
            ends = (f"trainer{trainer}", f"ps{p}")
            for src, dst in (ends, ends[::-1]):
                moved = [size for a, b, size in flows if (a, b) == (src, dst)]
                assert len(moved) == num_steps
                assert np.mean(moved) == pytest.approx(num_bytes / len(servers), rel=0.15, abs=1500)
    profile = profile_trace(trace, plan)
    assert profile.model_bytes == pytest.approx(num_bytes, rel=0.15, abs=2000)
    assert all(0 < time.mean < 1 for time in profile.task_times[Role.SERVER].values())
