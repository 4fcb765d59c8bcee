"""Every real dataset comes back from its parts as it was, and gives a model the same logits."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from headrace.graph.build.csc import build_csc
from headrace.graph.build.node_writer import write_parts
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.format.verify import verify
from headrace.graph.schema import GraphSource
from headrace.graph.sources.resolve import open_source
from tests.support.reassemble import reassemble
from tests.unit.graph.build.test_node_writer import assert_same
from tests.unit.graph.small_graphs import endpoints

DATA = Path(__file__).parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(
    not DATA.exists() and "CI" not in os.environ, reason="the datasets are not here"
)
pytestmark = [pytest.mark.integration, needs_data]

DATASETS = (
    "planetoid/cora.npz",
    "planetoid/citeseer.npz",
    "planetoid/pubmed.npz",
    "amazon_computers",
    "amazon_photo",
    "coauthor_cs",
    "coauthor_physics",
    "debian_bookworm",
    "wordnet30",
    "fb15k-237",
    "wn18rr",
    "gds_hetero/imdb",
    "gds_hetero/lastfm",
)
LARGE = ("coauthor_cs", "coauthor_physics", "fb15k-237")


def write(source: GraphSource, folder: Path, num_parts: int, features: str | None) -> None:
    """Write parts that cut almost every edge, the hardest case for ids."""
    rng = np.random.default_rng(0)
    sizes = {table.name: table.num_nodes for table in source.nodes}
    cscs = [
        build_csc(
            table,
            sizes[table.edge_type[0]],
            sizes[table.edge_type[2]],
            folder.with_name(f"csc-{e}"),
        )
        for e, table in enumerate(source.edges)
    ]
    parts = rng.integers(0, num_parts, source.num_nodes).astype(np.int32)
    clusters = rng.integers(0, 2, source.num_nodes).astype(np.int32)
    write_parts(source, cscs, parts, clusters, folder, num_parts=num_parts, features=features)


def logits(source: GraphSource, bits: bool = False) -> np.ndarray:
    """Of an untrained GraphSAGE on all nodes and edges, types joined."""
    import torch
    from torch_geometric.nn import GraphSAGE

    offsets = source.node_offsets()
    columns = {column.name: column for column in source.nodes[0].columns}
    if len(source.nodes) == 1 and "x" in columns:
        # PyG holds a row per edge in memory: 17 GB with all 8,415 columns of Coauthor-Physics.
        rows = columns["x"].read(0, source.num_nodes)[:, :1024]
        x = torch.tensor(rows)
        if bits:
            x = x.view(torch.bfloat16)
        x = x.to(torch.float32)
    else:
        x = torch.randn(source.num_nodes, 16, generator=torch.Generator().manual_seed(1))
    ends = []
    for table in source.edges:
        src, dst = (offsets[source.type_index(table.edge_type[i])] for i in (0, 2))
        pair = endpoints(table)
        ends.append(np.stack([pair[0] + src, pair[1] + dst]).astype(np.int64))
    torch.manual_seed(0)
    model = GraphSAGE(x.shape[1], 16, num_layers=2, out_channels=8, dropout=0.0)
    with torch.no_grad():
        return np.asarray(model(x, torch.from_numpy(np.concatenate(ends, axis=1))))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.campaign) if n in LARGE else n for n in DATASETS],
)
def test_nothing_is_lost(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    source = open_source(str(DATA / name), 0)
    write(source, tmp_path / "parts", num_parts=4, features=None)
    graph = open_graph(tmp_path / "parts")
    assert verify(tmp_path / "parts") == []
    assert_same(source, graph)
    np.testing.assert_allclose(logits(reassemble(graph)), logits(source), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("dtype", "error"), [("float16", 1e-3), ("bfloat16", 1e-2)])
def test_narrow_features_change_logits_little(dtype: str, error: float, tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    source = open_source(str(DATA / "planetoid/pubmed.npz"), 0)
    write(source, tmp_path / "parts", num_parts=4, features=dtype)
    again = reassemble(open_graph(tmp_path / "parts"))
    exact = logits(source)
    difference = np.abs(logits(again, bits=dtype == "bfloat16") - exact).max()
    assert 0 < difference < error * np.abs(exact).max()
