"""Graphs that are PyG `Data` or `HeteroData` objects."""

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
"""Topology in other forms, and the links of an earlier `RandomLinkSplit`."""


def from_pyg(data: Any, name: str = "graph") -> GraphSource:
    """A graph that shares its memory with a PyG object.

    Every tensor with a row per node or edge comes along; `train_mask`, `val_mask` and `test_mask`
    become splits. `bfloat16` is given as `float32`, which numpy knows.

    Args:
        data: `Data` or `HeteroData`; every edge type has an `edge_index`.
        name: What to call it.

    Raises:
        SpecError: It is something else, or lacks what is needed.
        MissingExtraError: PyG is not installed.
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
        raise SpecError(f"a {type(data).__name__} is no graph", "give a PyG Data or HeteroData")
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
            # PyG knows a node's value by its length, so a wrong length makes it vanish.
            raise SpecError(
                f"{key} of {name} nodes has shape {tuple(tensor.shape)}, but there are "
                f"{num_nodes:,} of them",
                f"give {key} one row per node, or leave it out",
            )
    return NodeTable(name, num_nodes, tuple(columns), splits)


def _edges(edge_type: EdgeType, store: Any) -> EdgeTable:
    what = f"{written(edge_type)} edges"
    index = store.get("edge_index")
    if index is None:
        raise SpecError(
            f"{what} have no edge_index",
            "give edge_index; leave out T.ToSparseTensor(), which makes adj_t of it",
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
        # PyG guesses from the largest id and warns, which loses isolated nodes at the end.
        warnings.simplefilter("error")
        try:
            num_nodes = store.num_nodes
        except UserWarning:
            num_nodes = None
    if num_nodes is None:
        raise SpecError(
            f"the data says nowhere how many {name} nodes there are", "set num_nodes or x"
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
            f"{what} has shape {tuple(tensor.shape)}, not {num_rows:,} rows", "give one row each"
        )
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.detach().cpu()

        def read(start: int, stop: int) -> np.ndarray:
            rows: np.ndarray = tensor[start:stop].float().numpy()
            return rows

        return Column(key, np.dtype(np.float32), tuple(tensor.shape[1:]), read)
    return Column.of(key, _numpy(tensor))


def _numpy(tensor: Any) -> np.ndarray:
    """The tensor's memory, if it is on this side of the bus."""
    import torch

    # PyG's EdgeIndex is a tensor that overrides much; underneath is a plain one.
    plain = tensor.as_tensor() if hasattr(tensor, "as_tensor") else tensor
    array: np.ndarray = torch.Tensor.numpy(plain.detach().cpu())
    return array
