"""Conversion of sampler outputs to PyG's `Data` and `HeteroData`, without copies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from headrace.graph.format.manifest import ColumnInfo
from headrace.graph.loader.buffer_pool import BufferPool
from headrace.graph.loader.graph_view import GraphView
from headrace.graph.sampling.feature_gather import FeatureGather
from headrace.graph.schema import TypeName

_HALVES = (torch.float16, torch.bfloat16)


class Collator:
    """Adds features to sampled nodes and edges.

    16-bit features are cast to `float32` unless `keep_dtype` is set.
    """

    def __init__(self, access: GraphView, keep_dtype: bool = False) -> None:
        self._access = access
        self._keep_dtype = keep_dtype
        self._pool = BufferPool()

    def make(self, out: SamplerOutput | HeteroSamplerOutput, new_ids: Any = None) -> Any:
        """Build a batch without the loader's seed attributes.

        Args:
            out: Sampler output: original node ids, edge ids in storage order.
            new_ids: New node ids by type, if known.
        """
        if new_ids is None:
            self._check_edges(out)
        if isinstance(out, HeteroSamplerOutput):
            return self._hetero(out, new_ids)
        return self._homogeneous(out, new_ids)

    def _homogeneous(self, out: SamplerOutput, new_ids: Any) -> Data:
        (node_type,), (edge_type,) = self._access.node_types, self._access.edge_types
        started = self._start_nodes(node_type, out.node, new_ids, out.batch is not None)
        started |= self._start_edges(edge_type, out.edge)
        data = Data()
        for name, value in self._access.extras.items():
            data[name] = value
        data.edge_index = torch.stack([out.row, out.col])
        self._fill(data, started)
        if not self._access.columns[node_type]:
            data.num_nodes = len(out.node)
        data.n_id = out.node
        if out.edge is not None and self._access.has_edge_ids(edge_type):
            data.e_id = self._original_edges(edge_type, out.edge)
        data.batch = out.batch
        data.num_sampled_nodes = out.num_sampled_nodes
        data.num_sampled_edges = out.num_sampled_edges
        if out.orig_row is not None and out.orig_col is not None:
            data._orig_edge_index = torch.stack([out.orig_row, out.orig_col])
        return data

    def _hetero(self, out: HeteroSamplerOutput, new_ids: Any) -> HeteroData:
        access = self._access
        repeats = out.batch is not None
        # Send the requests of all types before waiting for the first reply.
        nodes = {
            name: self._start_nodes(name, node, new_ids, repeats) for name, node in out.node.items()
        }
        edges = {e: self._start_edges(e, (out.edge or {}).get(e)) for e in out.row}
        data = HeteroData()
        for name, node in out.node.items():
            store = data[name]
            self._fill(store, nodes[name])
            if not access.columns[name]:
                store.num_nodes = len(node)
            store.n_id = node
        for edge_type, started in edges.items():
            store = data[edge_type]
            store.edge_index = torch.stack([out.row[edge_type], out.col[edge_type]])
            self._fill(store, started)
            edge = (out.edge or {}).get(edge_type)
            if edge is not None and access.has_edge_ids(edge_type):
                store.e_id = self._original_edges(edge_type, edge)
            if out.orig_row is not None and out.orig_col is not None:
                ends = [out.orig_row[edge_type], out.orig_col[edge_type]]
                store._orig_edge_index = torch.stack(ends)
        data.set_value_dict("batch", out.batch)
        data.set_value_dict("num_sampled_nodes", out.num_sampled_nodes)
        data.set_value_dict("num_sampled_edges", out.num_sampled_edges)
        return data

    def _start_nodes(
        self, node_type: str, node: Tensor, new_ids: Any, may_repeat: bool
    ) -> dict[str, tuple[FeatureGather, ColumnInfo, int]]:
        if new_ids is None:
            ids = self._access.to_new(node_type, node.numpy())
        else:
            ids = new_ids[node_type]
        return self._start(node_type, ids, may_repeat)

    def _start_edges(
        self, edge_type: TypeName, edge: Tensor | None
    ) -> dict[str, tuple[FeatureGather, ColumnInfo, int]]:
        return {} if edge is None else self._start(edge_type, edge.numpy(), True)

    def _start(
        self, of: TypeName, ids: np.ndarray, may_repeat: bool
    ) -> dict[str, tuple[FeatureGather, ColumnInfo, int]]:
        return {
            name: (self._access.gather(of, name, ids, may_repeat), column, len(ids))
            for name, column in self._access.columns[of].items()
        }

    def _check_edges(self, out: SamplerOutput | HeteroSamplerOutput) -> None:
        named = (
            {self._access.edge_types[0]: out.edge} if isinstance(out, SamplerOutput) else out.edge
        )
        for edge_type, edge in (named or {}).items():
            if edge is not None:
                self._access.check_edges(edge_type, edge.numpy())

    def _fill(self, store: Any, started: dict[str, tuple[FeatureGather, ColumnInfo, int]]) -> None:
        for name, (gathering, column, num_rows) in started.items():
            store[name] = finish(gathering, column, num_rows, self._keep_dtype, self._pool)

    def _original_edges(self, edge_type: Any, edge: Tensor) -> Tensor:
        return torch.from_numpy(self._access.edge_ids(edge_type, edge.numpy()))


def finish(
    gathering: FeatureGather,
    column: ColumnInfo,
    num_rows: int,
    keep_dtype: bool,
    pool: BufferPool | None = None,
) -> Tensor:
    """Wait for a gather and return its rows as a tensor."""
    pool = pool or BufferPool()
    shape, dtype = (num_rows, *column.shape), getattr(torch, column.dtype)
    if dtype not in _HALVES or keep_dtype:
        values = _allocate(gathering.purpose, shape, dtype, pool)
        gathering.into(_bits(values))
        return values
    short = pool.empty((*gathering.purpose, dtype), shape, dtype)
    gathering.into(_bits(short))
    return _allocate(gathering.purpose, shape, torch.float32, pool).copy_(short)


def _bits(values: Tensor) -> np.ndarray:
    array: np.ndarray = (
        values.view(torch.uint16) if values.dtype == torch.bfloat16 else values
    ).numpy()
    return array


def _allocate(
    purpose: object, shape: tuple[int, ...], dtype: torch.dtype, pool: BufferPool
) -> Tensor:
    if torch.utils.data.get_worker_info() is None:
        return pool.empty(purpose, shape, dtype)
    # Tensors in shared memory are not copied from a worker to the trainer.
    num_bytes = max(math.prod(shape), 1) * dtype.itemsize
    storage = torch.UntypedStorage._new_shared(num_bytes)
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # type: ignore[call-overload,no-any-return]
