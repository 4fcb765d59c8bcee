"""With all neighbours, batches and gradients are those of PyG alone, however many stores there are.

What PyG would do is taken from the whole graph: `k_hop_subgraph` says which nodes and edges a batch
must have, and a pass over all nodes gives the gradients of the same loss.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
pytest.importorskip("pyarrow")

from torch.nn.functional import cross_entropy  # noqa: E402
from torch_geometric.data import Data  # noqa: E402
from torch_geometric.nn import GAT, GCN, GraphSAGE  # noqa: E402
from torch_geometric.utils import k_hop_subgraph  # noqa: E402

from headrace.graph.build.partition import PartitionSpec, partition  # noqa: E402
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph  # noqa: E402
from headrace.graph.loader.neighbor_loader import NeighborLoader  # noqa: E402
from headrace.graph.sampler_worker.config import SamplerConfig  # noqa: E402
from headrace.graph.sampler_worker.schedule import batches_per_epoch, sampler_batch_size  # noqa: E402
from headrace.graph.sources.resolve import open_source  # noqa: E402
from tests.support.sampler_processes import start_prefetcher  # noqa: E402
from tests.support.stores import RunningStores, running_stores  # noqa: E402
from tests.unit.graph.small_graphs import endpoints  # noqa: E402

DATA = Path(__file__).parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(
    not DATA.exists() and "CI" not in os.environ, reason="the datasets are not here"
)
pytestmark = [pytest.mark.integration, needs_data]

CORA = DATA / "planetoid" / "cora.npz"
NUM_STORES = (1, 2, 4)
BATCH_SIZE = 64
EXACT: dict[str, float] = {"atol": 1e-5, "rtol": 1e-5}
Served = tuple[PartitionedGraph, RunningStores]
MODELS = {"GraphSAGE": GraphSAGE, "GCN": GCN, "GAT": GAT}


@pytest.fixture(scope="module")
def whole() -> Any:
    """The graph as PyG has it."""
    source = open_source(str(CORA), seed=0)
    columns = {column.name: column for column in source.nodes[0].columns}
    x, y = (torch.tensor(columns[name].read(0, source.num_nodes)) for name in ("x", "y"))
    edge_index = torch.stack([torch.tensor(ends) for ends in endpoints(source.edges[0])]).long()
    return Data(x=x, y=y, edge_index=edge_index)


@pytest.fixture(
    scope="module",
    params=[*NUM_STORES[:-1], pytest.param(NUM_STORES[-1], marks=pytest.mark.campaign)],
    ids=lambda num: f"{num} stores",
)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """All parts with store processes, and the graph as a machine has it that has no part."""
    num_parts = request.param
    folder = tmp_path_factory.mktemp("cora")
    shares = (1 / num_parts,) * num_parts
    partition(open_source(str(CORA), seed=0), PartitionSpec(shares, "metis"), folder / "parts")
    shutil.copytree(folder / "parts", folder / "here", ignore=shutil.ignore_patterns("part-*"))
    everything = range(num_parts)
    with running_stores(folder / "parts", everything, folder / "stores", tls=True) as stores:
        yield open_graph(folder / "here"), stores


def connected(stores: RunningStores) -> dict[int, Any]:
    return {store.part: partial(stores.connect, store.part) for store in stores.stores}


def made(model: str, num_features: int) -> Any:
    torch.manual_seed(0)
    return MODELS[model](num_features, 16, num_layers=2, out_channels=7)


def gradients(model: Any, logits: Any, labels: Any) -> list[Any]:
    model.zero_grad()
    cross_entropy(logits, labels).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def edges_of(edge_index: Any) -> list[tuple[int, int]]:
    return sorted(map(tuple, edge_index.t().tolist()))


def assert_batch(batch: Any, whole: Any, num_hops: int = 2) -> None:
    """Nodes, edges and values are those around the seeds in the whole graph."""
    seeds = batch.n_id[: batch.batch_size]
    inner, nodes = (
        k_hop_subgraph(seeds, hops, whole.edge_index, num_nodes=whole.num_nodes)[0]
        for hops in (num_hops - 1, num_hops)
    )
    assert sorted(batch.n_id.tolist()) == nodes.tolist()
    # A batch has the in-edges of all nodes but the outermost ones.
    wanted = whole.edge_index[:, torch.isin(whole.edge_index[1], inner)]
    assert edges_of(batch.n_id[batch.edge_index]) == edges_of(wanted)
    torch.testing.assert_close(batch.x, whole.x[batch.n_id], atol=0, rtol=0)
    labels = batch.y[: batch.batch_size]
    torch.testing.assert_close(labels, whole.y[seeds], atol=0, rtol=0)


def assert_gradients(batch: Any, whole: Any, model: str, **more: Any) -> None:
    """A step on the batch is a step on the whole graph with a loss of the same seeds."""
    plain = made(model, whole.num_features)
    seeds = batch.n_id[: batch.batch_size]
    logits = plain(whole.x, whole.edge_index)[seeds]
    wanted = gradients(plain, logits, whole.y[seeds])
    own = plain(batch.x, batch.edge_index, **more)[: batch.batch_size]
    torch.testing.assert_close(own, logits, **EXACT)
    have = gradients(plain, own, batch.y[: batch.batch_size])
    for left, right in zip(have, wanted, strict=True):
        torch.testing.assert_close(left, right, **EXACT)


def test_loaders_give_pygs_batches_and_gradients(served: Served, whole: Any) -> None:
    graph, stores = served
    connect = connected(stores)
    seeds = torch.arange(0, whole.num_nodes, 9)
    settings: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "connect": connect}
    loader = NeighborLoader(graph, [-1, -1], seeds, **settings)
    seen = []
    for batch in loader:
        assert_batch(batch, whole)
        assert_gradients(batch, whole, "GraphSAGE")
        # The outermost nodes are of no use to the last layer.
        counts = {
            "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
            "num_sampled_edges_per_hop": batch.num_sampled_edges,
        }
        assert_gradients(batch, whole, "GraphSAGE", **counts)
        seen.append(batch.n_id[: batch.batch_size])
    loader.data[0].access.stores.close()
    assert torch.cat(seen).sort().values.tolist() == seeds.tolist()


@pytest.mark.parametrize("model", ["GCN", "GAT"])
def test_models_that_look_one_hop_further(served: Served, whole: Any, model: str) -> None:
    """GCN's weights need the degrees of the outermost nodes too, so one hop more is sampled."""
    graph, stores = served
    connect = connected(stores)
    seeds = torch.arange(0, whole.num_nodes, 100)
    settings: dict[str, Any] = {"batch_size": BATCH_SIZE, "connect": connect}
    loader = NeighborLoader(graph, [-1, -1, -1], seeds, **settings)
    for batch in loader:
        assert_gradients(batch, whole, model)
    loader.data[0].access.stores.close()


def two_samplers(
    graph: PartitionedGraph, stores: RunningStores, seeds: np.ndarray
) -> tuple[list[SamplerConfig], list[np.ndarray]]:
    """Samplers that have no part of the graph."""
    own = np.array_split(seeds, 2)
    configs = [
        SamplerConfig(
            task=f"sampler {s}",
            graph=graph.folder,
            node_type="node",
            seeds=Path("given"),
            seeds_per_iteration=sampler_batch_size(BATCH_SIZE, 2, s),
            batches_per_epoch=batches_per_epoch([len(part) for part in own], BATCH_SIZE),
            fanouts=((("node", "to", "node"), (-1, -1)),),
            **stores.settings(),
        )
        for s in range(2)
    ]
    return configs, own


def test_batches_of_two_samplers_have_pygs_gradients(served: Served, whole: Any) -> None:
    graph, stores = served
    seeds = np.arange(0, whole.num_nodes, 9)
    seen = []
    with start_prefetcher(*two_samplers(graph, stores, seeds), time.perf_counter) as prefetcher:
        for batch in prefetcher:
            assert_gradients(batch, whole, "GraphSAGE")
            seen.append(batch.n_id[: batch.batch_size].clone())
    assert torch.cat(seen).sort().values.tolist() == seeds.tolist()
