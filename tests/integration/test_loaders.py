"""End to end: a graph cut in two, two store processes, and a trainer that has none of the parts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
pytest.importorskip("pyarrow")

from torch.nn.functional import cross_entropy  # noqa: E402
from torch_geometric.nn import GraphSAGE  # noqa: E402

from headrace.graph.build.partition import PartitionSpec, partition  # noqa: E402
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph  # noqa: E402
from headrace.graph.loader.neighbor_loader import NeighborLoader  # noqa: E402
from headrace.graph.sampling.store_pool import Connect  # noqa: E402
from headrace.graph.sources.resolve import open_source  # noqa: E402
from tests.integration.store_service.store_process import running  # noqa: E402
from tests.unit.graph.loader.loading_graphs import assert_same  # noqa: E402
from tests.unit.graph.small_graphs import endpoints  # noqa: E402

DATA = Path(__file__).parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(
    not DATA.exists() and "CI" not in os.environ, reason="the datasets are not here"
)
pytestmark = [pytest.mark.integration, needs_data]

NUM_PARTS = 2


@pytest.fixture(scope="module")
def pubmed(tmp_path_factory: pytest.TempPathFactory) -> PartitionedGraph:
    folder = tmp_path_factory.mktemp("pubmed") / "parts"
    shares = (1 / NUM_PARTS,) * NUM_PARTS
    partition(
        open_source(str(DATA / "planetoid" / "pubmed.npz"), seed=0),
        PartitionSpec(shares, "metis"),
        folder,
    )
    return open_graph(folder)


@pytest.fixture(scope="module")
def here(pubmed: PartitionedGraph, tmp_path_factory: pytest.TempPathFactory) -> PartitionedGraph:
    """The graph as a machine has it that stores no part."""
    folder = tmp_path_factory.mktemp("trainer") / "parts"
    shutil.copytree(pubmed.folder, folder, ignore=shutil.ignore_patterns("part-*"))
    return open_graph(folder)


@pytest.fixture(scope="module")
def connect(
    pubmed: PartitionedGraph, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, Connect]]:
    folder = tmp_path_factory.mktemp("stores")
    with (
        running(folder / "0", pubmed.folder, 0) as first,
        running(folder / "1", pubmed.folder, 1) as second,
    ):
        yield {0: first.connect, 1: second.connect}


def original_seeds(graph: PartitionedGraph, split: str) -> Any:
    parts = [graph.part(number) for number in range(graph.num_parts)]
    seeds = np.concatenate([part.split("node", split) + part.start("node") for part in parts])
    return torch.from_numpy(graph.to_original("node", seeds)).sort().values


def accuracy(logits: Any, labels: Any) -> float:
    return float((logits.argmax(-1) == labels).float().mean())


def test_batches_are_those_of_one_process(
    pubmed: PartitionedGraph, here: PartitionedGraph, connect: dict[int, Connect]
) -> None:
    settings: dict[str, Any] = {"num_neighbors": [10, 5], "batch_size": 256, "shuffle": True}
    settings["input_nodes"] = torch.arange(0, 19_717, 20)
    wanted = NeighborLoader(pubmed, **settings)
    loader = NeighborLoader(here, **settings, connect=connect)
    for left, right in zip(wanted, loader, strict=True):
        assert_same(left, right)
    loader.data[0].access.stores.close()


@pytest.mark.campaign
def test_learns_pubmed_as_pyg_does(
    pubmed: PartitionedGraph, here: PartitionedGraph, connect: dict[int, Connect]
) -> None:
    source = open_source(str(DATA / "planetoid" / "pubmed.npz"), seed=0)
    columns = {column.name: column for column in source.nodes[0].columns}
    x, y = (torch.tensor(columns[name].read(0, source.num_nodes)) for name in ("x", "y"))
    edge_index = torch.stack([torch.tensor(ends) for ends in endpoints(source.edges[0])]).long()
    train, test = original_seeds(pubmed, "train"), original_seeds(pubmed, "test")

    def made() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = GraphSAGE(x.shape[1], 64, num_layers=2, out_channels=3, dropout=0.5)
        return model, torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    plain, optimizer = made()
    for _ in range(40):
        plain.train()
        optimizer.zero_grad()
        cross_entropy(plain(x, edge_index)[train], y[train]).backward()
        optimizer.step()
    plain.eval()
    with torch.no_grad():
        wanted = accuracy(plain(x, edge_index)[test], y[test])

    model, optimizer = made()
    settings: dict[str, Any] = {"connect": connect, "batch_size": 60, "shuffle": True}
    loader = NeighborLoader(here, [10, 10], train, **settings)
    for _ in range(40):
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
    model.eval()
    logits, labels = [], []
    everyone = NeighborLoader(loader.data, [-1, -1], test, batch_size=500)
    with torch.no_grad():
        for batch in everyone:
            logits.append(model(batch.x, batch.edge_index)[: batch.batch_size])
            labels.append(batch.y[: batch.batch_size])
        whole = model(x, edge_index)[test]
    torch.testing.assert_close(torch.cat(logits), whole, atol=1e-4, rtol=1e-4)
    have = accuracy(torch.cat(logits), torch.cat(labels))
    assert have > 0.72
    assert abs(have - wanted) < 0.03
    loader.data[0].access.stores.close()
