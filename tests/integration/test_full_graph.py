"""Trainers with parts of a graph compute the gradients of one PyG process with all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch_geometric.data import Data, HeteroData  # noqa: E402

from headrace.core.column_slices import column_values, columns_are_fewer  # noqa: E402
from headrace.graph.build.cover_sizes import cover_sizes  # noqa: E402
from headrace.graph.format.partitioned_graph import open_graph  # noqa: E402
from headrace.graph.schema import Column, GraphSource, NodeTable  # noqa: E402
from tests.integration.full_graph_script import (  # noqa: E402
    EDGE_TYPES,
    HIDDEN,
    MODELS,
    NUM_CLASSES,
    NUM_STEPS,
    NUM_TRAINERS,
    TYPED_MODELS,
    TYPES,
    WIDTH,
    learn,
    model_of,
)
from tests.unit.graph.small_graphs import edge_table, endpoints, homogeneous, write  # noqa: E402

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).with_name("full_graph_script.py")
NUM_PARTS = 4
HANG_S = 400
LARGEST_ERRORS = {"int8 gcn": 0.02, "int4 gat": 0.3}


def typed() -> GraphSource:
    rng = np.random.default_rng(0)
    nodes = []
    for name, num in TYPES.items():
        columns = [Column.of("x", rng.standard_normal((num, WIDTH)).astype(np.float32))]
        splits = {}
        if name == "paper":
            columns.append(Column.of("y", rng.integers(0, NUM_CLASSES, num)))
            splits["train"] = np.flatnonzero(rng.random(num) < 0.5)
        nodes.append(NodeTable(name, num, tuple(columns), splits))
    edges = []
    for edge_type in EDGE_TYPES:
        source, _, destination = edge_type
        ends = rng.integers(0, [[TYPES[source]], [TYPES[destination]]], (2, 120))
        edges.append(edge_table(edge_type, *ends))
    return GraphSource("typed", tuple(nodes), tuple(edges))


def as_pyg(source: GraphSource) -> Any:
    """The graph as PyG has it, in one piece."""
    is_typed = len(source.nodes) > 1
    data: Any = HeteroData() if is_typed else Data()
    for nodes in source.nodes:
        store = data[nodes.name] if is_typed else data
        for column in nodes.columns:
            store[column.name] = torch.tensor(column.read(0, nodes.num_nodes))
        if "train" in nodes.splits:
            store.train_mask = torch.zeros(nodes.num_nodes, dtype=torch.bool)
            store.train_mask[torch.tensor(nodes.splits["train"])] = True
    for edges in source.edges:
        store = data[edges.edge_type] if is_typed else data
        store.edge_index = torch.tensor(np.stack(endpoints(edges))).long()
        for column in edges.columns:
            store[column.name] = torch.tensor(column.read(0, edges.num_edges))
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all trainers found, and the two graphs."""
    made = tmp_path_factory.mktemp("full_graph")
    write(homogeneous(200, 900), made / "graph", NUM_PARTS)
    write(typed(), made / "typed", NUM_PARTS)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(SCRIPT), str(made)], check=True, env=environment)
    return made


def found_by(folder: Path, num_trainers: int, name: str) -> list[Any]:
    paths = [folder / f"found-{num_trainers}-{rank}.pt" for rank in range(num_trainers)]
    return [torch.load(path)[name] for path in paths]


@pytest.mark.parametrize("name", [*MODELS, *TYPED_MODELS])
def test_gradients_are_those_of_one_process(folder: Path, name: str) -> None:
    data = as_pyg(homogeneous(200, 900) if name in MODELS else typed())
    gradients, buffers = learn(model_of(name), name, data)
    whole = torch.cat([each.flatten() for each in gradients])
    for num_trainers in NUM_TRAINERS:
        for found, own, _ in found_by(folder, num_trainers, name):
            error = torch.cat([each.flatten() for each in found]) - whole
            assert float(error.norm() / whole.norm()) < LARGEST_ERRORS.get(name, 1e-6)
            if name in LARGEST_ERRORS:
                continue
            for ours, theirs in zip(own, buffers, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_trainers", NUM_TRAINERS)
def test_bytes_are_those_counted_from_the_parts(folder: Path, num_trainers: int) -> None:
    graph = open_graph(folder / "graph")
    # With 3 trainers, which partition is the second of a trainer depends on their sizes.
    sizes = np.diff(graph.offsets("node"))
    trainers, load = np.full(NUM_PARTS, -1), np.zeros(num_trainers, int)
    for part in np.argsort(-sizes, kind="stable"):
        trainers[part] = np.argmin(load)
        load[trainers[part]] += sizes[part]
    (edge_type,) = graph.edge_types
    rows = cover_sizes(graph, trainers.tolist(), edge_type)
    num_sums, num_halo = int(rows.total.sum()), int(rows.halo.sum())
    # GCN projects rows before it sends them; degrees are sent once, of every halo row.
    expected = {"gcn": num_halo + num_sums * NUM_STEPS * 2 * (HIDDEN + NUM_CLASSES)}
    # GraphSAGE adds up features as they are, once and without gradients.
    expected["sage"] = num_sums * (WIDTH + NUM_STEPS * 2 * HIDDEN)
    # GAT needs every row twice: its features and their attention.
    expected["gat"] = num_halo * NUM_STEPS * 2 * (HIDDEN + 2 + NUM_CLASSES * 2 + 2)
    # By columns: of projected rows of GCN, and of features once and hidden rows of GraphSAGE.
    nodes = np.bincount(trainers, sizes)

    def columns(width: int) -> int:
        return int(np.sum(column_values(nodes, nodes, width)))

    either = [
        columns(width) if columns_are_fewer(rows.total, nodes, nodes, width) else num_sums * width
        for width in (HIDDEN, NUM_CLASSES, NUM_CLASSES)
    ]
    gcn = 2 * columns(3) + columns(NUM_CLASSES)
    expected["gcn by features"] = num_halo + gcn * NUM_STEPS * 2
    expected["sage by features"] = columns(WIDTH) + columns(HIDDEN) * NUM_STEPS * 2
    planned = columns(HIDDEN) + num_sums * NUM_CLASSES
    expected["gcn as planned"] = num_halo + planned * NUM_STEPS * 2
    expected["branches by either"] = num_halo + sum(either) * NUM_STEPS * 2
    for name, num_values in expected.items():
        sent = [num_bytes for _, _, num_bytes in found_by(folder, num_trainers, name)]
        assert sum(sent) == num_values * 4


def test_rounded_rows_have_fewer_bytes(folder: Path) -> None:
    for name, exact in (("int8 gcn", "gcn"), ("int4 gat", "gat")):
        rounded, whole = ([each[2] for each in found_by(folder, 4, of)] for of in (name, exact))
        # Rows of 7 to 16 values, with a header of 8 bytes.
        assert sum(rounded) < 0.6 * sum(whole)


@pytest.mark.campaign
def test_a_killed_trainer_resumes_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(homogeneous(200, 900), tmp_path / "graph", NUM_PARTS)
    script = Path(__file__).with_name("full_graph_killed_script.py")
    learnt = []
    for name, settings in (("whole", []), ("killed", ["--set", f"mark={tmp_path / 'mark'}"])):
        monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path / name))
        options = ["--trainers", "2", "--samplers", "0", "--stores", "0", "--checkpoint-every", "2"]
        command = [sys.executable, "-m", "headrace", "run", "--local", str(script), *options]
        command += ["--graph", str(tmp_path / "graph"), *settings, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout.splitlines()[-1])
        assert summary["attempts"] == (2 if name == "killed" else 1)
        (path,) = (tmp_path / name / "latest").glob("**/learnt.pt")
        learnt.append(torch.load(path))
    for name, value in learnt[0].items():
        assert torch.equal(value, learnt[1][name])
