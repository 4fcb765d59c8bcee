"""Sub-batches for a trainer on another machine: encoded on the way, the same after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import DamagedGraphError
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.graph.loader.graph_view import PartitionedGraphView
from headrace.graph.sampler_worker.channels.sub_batch import (
    SubBatch,
    arrays_in,
    from_fields,
    place,
    to_fields,
)
from headrace.graph.sampler_worker.config import ListenAddress, SamplerConfig
from headrace.graph.sampler_worker.schedule import SampleTask
from headrace.graph.sampler_worker.sub_batch_builder import SubBatchBuilder
from headrace.graph.store.client import StoreClient
from headrace.graph.store.in_process import InProcessChannel
from headrace.graph.store.service import StoreService
from headrace.graph.store.shard import open_shard
from headrace.rpc.config import RpcLimits
from tests.unit.graph.small_graphs import homogeneous, with_features, write

pytest.importorskip("torch_geometric")

RNG = np.random.default_rng(0)
DENSE = RNG.normal(size=(60, 37)).astype(np.float32)
TWO = (DENSE > 0).astype(np.float32)
SPARSE = np.where(DENSE > 1, DENSE, 0)


def sampled(
    graph: PartitionedGraph, listen: ListenAddress | None, parts: tuple[int, ...]
) -> tuple[SubBatch, int, list[np.ndarray]]:
    """A sub-batch as its trainer receives it, its size on the way, and its encoded rows."""
    config = SamplerConfig(
        graph=graph.folder,
        node_type="node",
        seeds=Path("given"),
        seeds_per_iteration=8,
        batches_per_epoch=1,
        fanouts=tuple((edge_type, (4, 3)) for edge_type in graph.edge_types),
        listen=listen,
    )
    connect = {part: lambda part=part: _store(graph, part) for part in parts}
    builder = SubBatchBuilder(PartitionedGraphView(graph, connect), config, lambda: 0.0)
    draft = builder.start(builder.sample(SampleTask(0, 0, np.arange(8))))
    placed, num_bytes = place(draft.shapes)
    memory = np.empty(num_bytes, np.uint8)
    sub_batch = draft.fill(arrays_in(memory, placed))
    rows = [each.rows for each in sub_batch.encoded]
    received = from_fields(to_fields(sub_batch, placed), memory, rows)
    return received, num_bytes + sum(each.nbytes for each in rows), rows


def _store(graph: PartitionedGraph, part: int) -> StoreClient:
    return StoreClient(InProcessChannel(StoreService(open_shard(graph, part), RpcLimits())))


@pytest.mark.parametrize(
    ("values", "features"),
    [(TWO, "auto"), (SPARSE, "auto"), (TWO * 3, "auto"), (DENSE, "int8"), (DENSE, "int4")],
)
@pytest.mark.parametrize("parts", [(), (1,), (0, 1, 2)])
def test_a_trainer_elsewhere_gets_the_same_rows_in_fewer_bytes(
    tmp_path: Path, values: np.ndarray, features: str, parts: tuple[int, ...]
) -> None:
    write(with_features(homogeneous(60, 500), values), tmp_path / "g", features=features)
    graph = open_graph(tmp_path / "g")
    here, num_bytes, none = sampled(graph, None, parts)
    there, num_sent_bytes, rows = sampled(graph, ListenAddress(ready=tmp_path / "r"), parts)
    assert not none
    assert len(rows) == 1
    assert num_sent_bytes < num_bytes
    assert here.arrays.keys() == there.arrays.keys()
    for key, array in here.arrays.items():
        assert np.array_equal(there.arrays[key], array)


def test_damaged_rows_are_refused(tmp_path: Path) -> None:
    write(with_features(homogeneous(60, 500), SPARSE), tmp_path / "g", features="auto")
    graph = open_graph(tmp_path / "g")
    _, _, (rows,) = sampled(graph, ListenAddress(ready=tmp_path / "r"), ())
    fields = {
        "epoch": 0,
        "batch": 0,
        "nodes": [],
        "edges": [],
        "placed": [],
        "figures": {},
        "encoded": [["node", "x", "node", "float32", [8, 37], {"kind": "sparse", "row_bytes": 9}]],
    }
    for damaged in (rows[:-1], rows | 0x8000, rows.astype(np.uint8)):
        with pytest.raises(DamagedGraphError):
            from_fields(fields, np.empty(0, np.uint8), [damaged])
