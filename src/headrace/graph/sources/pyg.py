"""Graph sources from PyG `Data` and `HeteroData`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from headrace.core.errors import MissingExtraError, SpecError
from headrace.graph.schema import SPLITS, Column, EdgeTable, EdgeType, GraphSource, NodeTable
from headrace.graph.sources.arrays import EDGE, NODE, chunks_of, split_of_mask
from headrace.graph.sources.validate import check_names, written

_NO_COLUMN = {"edge_index", "adj", "adj_t", "edge_label", "edge_label_index", "num_nodes"}
"""Topology in other forms, and the links of `RandomLinkSplit`."""


def from_pyg(data: Any, name: str = "graph") -> GraphSource:
    """Create a source that shares memory with a PyG `Data` or `HeteroData`.

    Includes every tensor with a row per node or edge; `train_mask`, `val_mask` and `test_mask`
    become splits. Every edge type needs an `edge_index`. `bfloat16`, which numpy lacks, is read as
    `float32`.
    """
    try:
        from torch_geometric.data import Data, HeteroData
    except ImportError:
        raise MissingExtraError(
            "torch_geometric is not installed", "pip install 'headrace[train]'"
        ) from None
    if isinstance(data, HeteroData):
        nodes = tuple(_nodes(kind, data[kind]) for kind in data.node_types)
        edges = tuple(_edges(kind, data[kind]) for kind in data.edge_types)
    elif isinstance(data, Data):
        nodes = (_nodes(NODE, data),)
        edges = (_edges(EDGE, data),)
    else:
        raise SpecError(f"{type(data).__name__} is not a graph", "give a PyG Data or HeteroData")
    source = GraphSource(name, nodes, edges)
    check_names(source)
    return source


def _nodes(name: str, store: Any) -> NodeTable:
    num_nodes = _num_nodes(name, store)
    columns, splits = [], {}
    for key, tensor in _tensors(store):
        if key.removesuffix("_mask") in SPLITS and key.endswith("_mask"):
            mask = tensor.detach().cpu().numpy()
            splits[key.removesuffix("_mask")] = split_of_mask(
                f"{key} of {name} nodes", mask, num_nodes
            )
        elif store.is_node_attr(key):
            columns.append(_column(f"{key} of {name} nodes", key, tensor, num_nodes))
        elif key in ("x", "y") and not store.is_edge_attr(key):
            # PyG detects node attributes by length, so one of a wrong length would be dropped.
            raise SpecError(
                f"{key} of {name} nodes has shape {tuple(tensor.shape)}, but there are "
                f"{num_nodes:,} of them",
                f"give {key} one row per node, or remove it",
            )
    return NodeTable(name, num_nodes, tuple(columns), splits)


def _edges(edge_type: EdgeType, store: Any) -> EdgeTable:
    what = f"{written(edge_type)} edges"
    index = store.get("edge_index")
    if index is None:
        raise SpecError(
            f"{what} have no edge_index",
            "give edge_index; do not use T.ToSparseTensor(), which replaces it by adj_t",
        )
    index = _numpy(index)
    if index.ndim != 2 or index.shape[0] != 2 or index.dtype.kind not in "iu":
        raise SpecError(
            f"the edge_index of {what} is {index.dtype} of shape {index.shape}",
            "give integers of shape (2, edges)",
        )
    columns = tuple(
        _column(f"{key} of {what}", key, tensor, index.shape[1])
        for key, tensor in _tensors(store)
        if store.is_edge_attr(key)
    )
    return EdgeTable(edge_type, index.shape[1], chunks_of(index[0], index[1]), columns)


def _num_nodes(name: str, store: Any) -> int:
    with warnings.catch_warnings():
        # PyG warns and infers the number from the largest id, which omits isolated nodes.
        warnings.simplefilter("error")
        try:
            num_nodes = store.num_nodes
        except UserWarning:
            num_nodes = None
    if num_nodes is None:
        raise SpecError(
            f"the data does not define the number of {name} nodes", "set num_nodes or x"
        )
    return int(num_nodes)


def _tensors(store: Any) -> Iterable[tuple[str, Any]]:
    import torch

    for key in store.keys():  # noqa: SIM118 - iterating a Data gives pairs
        if key not in _NO_COLUMN and isinstance(store[key], torch.Tensor):
            yield key, store[key]


def _column(what: str, key: str, tensor: Any, num_rows: int) -> Column:
    import torch

    if tensor.is_sparse or tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.dim() == 0 or tensor.shape[0] != num_rows:
        raise SpecError(
            f"{what} has shape {tuple(tensor.shape)}, not {num_rows:,} rows",
            "give one row per node or edge",
        )
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.detach().cpu()

        def read(start: int, stop: int) -> np.ndarray:
            rows: np.ndarray = tensor[start:stop].float().numpy()
            return rows

        return Column(key, np.dtype(np.float32), tuple(tensor.shape[1:]), read)
    return Column.of(key, _numpy(tensor))


def _numpy(tensor: Any) -> np.ndarray:
    """The tensor as an array, without a copy if it is in host memory."""
    import torch

    # PyG's EdgeIndex is a tensor subclass; convert it to a plain tensor.
    plain = tensor.as_tensor() if hasattr(tensor, "as_tensor") else tensor
    array: np.ndarray = torch.Tensor.numpy(plain.detach().cpu())
    return array
