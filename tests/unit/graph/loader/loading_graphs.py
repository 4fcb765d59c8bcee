"""Small PyG graphs, and the same graphs in parts."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.graph.format.row_codec import StoredRows
from headrace.graph.sampling.hop import Hop, HopRequest, hop_over
from headrace.graph.schema import TypeName
from headrace.graph.sources.pyg import from_pyg
from headrace.graph.store.service import take_rows
from headrace.graph.store.shard import open_shard
from headrace.rpc.errors import StoreError
from tests.unit.graph.small_graphs import write

WRITES = ("author", "writes", "paper")
CITES = ("paper", "cites", "paper")
TEACHES = ("author", "teaches", "author")
HAS = ("venue", "has", "paper")
IN = ("paper", "in", "venue")


def random_data(num_nodes: int = 80, num_edges: int = 500, seed: int = 0) -> Any:
    rng = torch.Generator().manual_seed(seed)
    ends = torch.randint(num_nodes, (2, num_edges), generator=rng)
    # Some nodes have many neighbours.
    ends[1, : num_edges // 3] //= 8
    return Data(
        x=torch.randn(num_nodes, 6, generator=rng),
        y=torch.randint(4, (num_nodes,), generator=rng),
        time=torch.randint(100, (num_nodes,), generator=rng),
        edge_index=ends,
        edge_attr=torch.randn(num_edges, 3, generator=rng),
        edge_weight=torch.rand(num_edges, generator=rng),
    )


def random_hetero(seed: int = 0) -> Any:
    rng = torch.Generator().manual_seed(seed)
    data = HeteroData()
    sizes = {"paper": 60, "author": 25, "venue": 5}
    for name, size in sizes.items():
        data[name].x = torch.randn(size, 4, generator=rng)
    data["paper"].y = torch.randint(3, (60,), generator=rng)
    data["paper"].train_mask = torch.rand(60, generator=rng) < 0.5
    for edge_type, num_edges in ((WRITES, 150), (CITES, 200), (TEACHES, 40), (HAS, 60), (IN, 9)):
        src = torch.randint(sizes[edge_type[0]], (num_edges,), generator=rng)
        dst = torch.randint(sizes[edge_type[2]], (num_edges,), generator=rng)
        data[edge_type].edge_index = torch.stack([src, dst])
        data[edge_type].edge_attr = torch.randn(num_edges, 2, generator=rng)
    return data


def in_parts(data: Any, folder: Path, num_parts: int, **kwargs: Any) -> PartitionedGraph:
    """Deal nodes to parts at random, the hardest case."""
    path = folder / f"parts-{num_parts}"
    write(from_pyg(data), path, num_parts, **kwargs)
    return open_graph(path)


class FakeStore:
    """What a store's client does, without a network; it counts what it is asked for."""

    def __init__(self, graph: PartitionedGraph, part: int, gives_ids: bool) -> None:
        self._shard = open_shard(graph, part)
        self._part = graph.part(part)
        self._graph = graph
        self._gives_ids = gives_ids
        self.asked: list[tuple[TypeName, str, np.ndarray]] = []
        self.is_open = True

    def sample_soon(self, request: HopRequest) -> Future[Hop]:
        done: Future[Hop] = Future()
        own = self._shard.edges_by(request.edge_type, request.weight, request.time)
        done.set_result(hop_over([own], request))
        return done

    def gather_soon(
        self, of: TypeName, column: str, ids: np.ndarray, dims: np.ndarray | None = None
    ) -> Future[np.ndarray]:
        self.asked.append((of, column, ids))
        done: Future[np.ndarray] = Future()
        values: StoredRows
        if column == "ids":
            if not self._gives_ids:
                done.set_exception(StoreError("refused", "ask for something else"))
                return done
            if isinstance(of, str):
                first, values = self._part.start(of), self._part.original_ids(of)
            else:
                kept = self._part.edge_ids(of)
                assert kept is not None
                first, values = self._shard.edges[of].first_edge, kept
        else:
            rows = self._shard.rows[of, column]
            first, values = rows.first, rows.values
        done.set_result(take_rows(values, ids - first, dims))
        return done

    def close(self) -> None:
        self.is_open = False


def tensors(batch: Any) -> dict[Any, Any]:
    """Everything a batch holds, flat."""
    return {(store._key, key): value for store in batch.stores for key, value in store.items()}


def assert_same(left: Any, right: Any, without: tuple[str, ...] = ()) -> None:
    """Two batches hold the same, bit by bit."""
    first, second = tensors(left), tensors(right)
    names = [key for key in first if key[1] not in without]
    assert set(names) == {key for key in second if key[1] not in without}
    for key in names:
        if isinstance(first[key], torch.Tensor):
            assert first[key].dtype == second[key].dtype, key
            assert torch.equal(first[key], second[key]), key
        else:
            assert first[key] == second[key], key
