"""Three trainers on four Ray nodes learn what one process learns, and send what the trace says."""

from __future__ import annotations

from pathlib import Path

import pytest

# Now: PyG warns of what it imports, and warnings are errors in tests.
pytest.importorskip("torch_geometric.nn")

from benchmarks.cluster_bed import Layout, Run, make_cluster, make_plan, processes, trace_of
from benchmarks.cluster_checks import bytes_by_machine, gradient_difference, left_over, snapshot
from benchmarks.cluster_runtime import is_placed
from headrace.api.graph import partition
from headrace.core.cluster import Cluster
from headrace.runtime.testbed import Testbed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

MODEL = {"features": 64, "classes": 16, "width": 8, "fanouts": [10, 5]}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph") / "parts"
    partition("generated:nodes=2e4,edges=4e5,features=64", folder, 4)
    return folder


def test_the_benchmark_uses_the_machines_of_the_testbed(cluster: Cluster) -> None:
    assert [machine.name for machine in make_cluster().hosts] == [
        machine.name for machine in cluster.hosts
    ]


@pytest.mark.parametrize("seeds", [(), (1, 2, 3, 4, 5, 6)], ids=["equal", "unequal"])
def test_gradients_are_those_of_one_process(
    testbed: Testbed, graph: Path, tmp_path: Path, seeds: tuple[int, ...]
) -> None:
    config = {**MODEL, "task": "gradients", "epochs": 1}
    run = Run(testbed, make_plan(Layout(seeds=seeds), 300), graph, tmp_path, config)
    folder = run.end()
    assert gradient_difference(folder, graph, config) <= 1e-5
    assert is_placed(run, folder)
    assert not left_over(testbed)


def test_links_carry_what_the_trace_says(testbed: Testbed, graph: Path, tmp_path: Path) -> None:
    together = Layout(samplers=("m0", "m0", "m1", "m1", "m2", "m2"))
    config = {**MODEL, "task": "steps", "steps": 400}
    run = Run(testbed, make_plan(together, 192), graph, tmp_path, config)
    run.wait_for_iteration(50)
    first = snapshot(testbed, processes(testbed))
    run.wait_for_iteration(250)
    last = snapshot(testbed, processes(testbed))
    folder = run.end()
    links = bytes_by_machine(trace_of(folder), folder, first, last)
    # Samplers sit with their trainers, so that all of it comes from stores and gradients.
    for name, each in links.items():
        assert each["counted"] > 1e6, name
        assert each["traced"] == pytest.approx(each["counted"], rel=0.03), (name, links)
