"""Validation and conversion of the arguments of loaders."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler.base import NumNeighbors

from headrace.core.errors import SpecError
from headrace.graph.kernels.id_table import place_runs
from headrace.graph.loader.graph_view import GraphView
from headrace.graph.sampling.hop import check_far, check_labor
from headrace.graph.schema import SPLITS, EdgeType


def seeds_of(access: GraphView, input_nodes: Any) -> Any:
    """Seeds in the format of PyG's loaders.

    `input_nodes` is as in PyG, or the name of a split in place of a mask or ids.
    """
    if access.is_homogeneous:
        return _nodes(access, access.node_types[0], input_nodes)
    known = ", ".join(access.node_types)
    if isinstance(input_nodes, str):
        node_type, nodes = input_nodes, None
    elif isinstance(input_nodes, tuple | list) and len(input_nodes) == 2:
        node_type, nodes = input_nodes
    else:
        raise SpecError(
            "the graph is heterogeneous, and input_nodes does not name a node type",
            f"use one of {known}, or a pair of one and ids",
        )
    if node_type not in access.node_types:
        raise SpecError(f"there are no nodes of type {node_type!r}", f"use one of {known}")
    return node_type, _nodes(access, node_type, nodes)


def _nodes(access: GraphView, node_type: str, nodes: Any) -> Tensor:
    num_nodes = access.num_nodes[node_type]
    if nodes is None:
        return torch.arange(num_nodes)
    if isinstance(nodes, str) and nodes in SPLITS:
        return torch.from_numpy(access.split(node_type, nodes))
    try:
        ids = nodes if isinstance(nodes, Tensor) else torch.as_tensor(np.asarray(nodes))
    except (TypeError, ValueError, RuntimeError):
        raise SpecError(f"input_nodes is {nodes!r}", "pass ids, a mask or a split") from None
    if ids.dtype == torch.bool:
        if ids.shape != (num_nodes,):
            raise SpecError(
                f"the mask of input nodes has shape {tuple(ids.shape)}, there are {num_nodes} "
                f"nodes of type {node_type!r}",
                "pass one value per node",
            )
    elif ids.is_floating_point() or ids.dim() != 1:
        raise SpecError(
            f"input_nodes is {ids.dtype} of shape {tuple(ids.shape)}", "pass a 1-D array of ids"
        )
    elif len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes:
        raise SpecError(
            f"input nodes are {int(ids.min())} to {int(ids.max())}, there are {num_nodes} nodes "
            f"of type {node_type!r}",
            f"use 0 to {num_nodes - 1}",
        )
    return ids if ids.dtype == torch.bool else ids.to(torch.int64)


def fanouts_of(access: GraphView, num_neighbors: Any) -> dict[EdgeType, list[int]]:
    """Neighbours per hop by edge type; `num_neighbors` is as in PyG."""
    if not isinstance(num_neighbors, NumNeighbors):
        num_neighbors = NumNeighbors(num_neighbors)
    if access.is_homogeneous:
        return {access.edge_types[0]: num_neighbors.get_values()}
    values: dict[EdgeType, list[int]] = num_neighbors.get_values(list(access.edge_types))
    return values


def check_draws(
    *,
    replace: bool,
    disjoint: bool,
    temporal_strategy: str,
    time_attr: str | None,
    weight_attr: str | None,
    far: float,
    labor: bool,
    **_: Any,
) -> None:
    """Raise `SpecError` if a loader's options of draws are wrong or exclude each other."""
    if temporal_strategy not in ("uniform", "last"):
        raise SpecError(f"unknown temporal strategy {temporal_strategy!r}", "use uniform or last")
    check_far(far, weight_attr, time_attr)
    if labor:
        check_labor(
            replace=replace,
            disjoint=disjoint,
            time_attr=time_attr is not None,
            weight_attr=weight_attr is not None,
            far=far < 1,
        )


def links_of(access: GraphView, data: Any, edge_label_index: Any) -> tuple[Any, Tensor]:
    """Edge type, None if homogeneous, and both ends of all links.

    `edge_label_index` is as in PyG, or the name of a split of held-out links in place of a tensor.
    """
    if access.is_homogeneous:
        edge_type = access.edge_types[0]
        if edge_label_index is None and isinstance(data, Data):
            return None, data.edge_index
        return None, _links(access, edge_type, edge_label_index)
    if not isinstance(edge_label_index, tuple | list) or len(edge_label_index) not in (2, 3):
        raise SpecError(
            "the graph is heterogeneous, and edge_label_index does not name an edge type",
            f"use one of {list(access.edge_types)}, or a pair of one and links",
        )
    if isinstance(edge_label_index[0], str):
        edge_type, links = _edge_type(access, edge_label_index), None
    else:
        edge_type, links = _edge_type(access, edge_label_index[0]), edge_label_index[1]
    if links is None and isinstance(data, HeteroData):
        return edge_type, data[edge_type].edge_index
    return edge_type, _links(access, edge_type, links)


def _edge_type(access: GraphView, given: Any) -> EdgeType:
    """An edge type by its full name or, if unambiguous, by the node types at its ends."""
    name = tuple(given)
    found = [each for each in access.edge_types if name in (each, (each[0], each[2]))]
    if len(found) != 1:
        raise SpecError(
            f"{name} matches {len(found)} edge types", f"use one of {list(access.edge_types)}"
        )
    return found[0]


def _links(access: GraphView, edge_type: EdgeType, links: Any) -> Tensor:
    if links is None:
        row, colptr = whole_csc(access, edge_type)
        col = np.repeat(np.arange(len(colptr) - 1), np.diff(colptr))
        return torch.from_numpy(np.stack([row, col]))
    if isinstance(links, str):
        return torch.from_numpy(access.links(edge_type, links))
    if not isinstance(links, Tensor) or links.dim() != 2 or links.shape[0] != 2:
        raise SpecError(
            f"links are {type(links).__name__} of shape {tuple(getattr(links, 'shape', ()))}",
            "pass a tensor of shape (2, num_links)",
        )
    return links


def whole_csc(access: GraphView, edge_type: EdgeType) -> tuple[np.ndarray, np.ndarray]:
    """CSC of all edges by original ids; raise `SpecError` if partitions are remote."""
    if access.stores:
        raise SpecError(
            f"all edges of type {edge_type} were requested, partitions {access.stores.parts} are "
            "not on this machine",
            "sample instead, pass edge_label_index, or copy the partitions here",
        )
    src, _, dst = edge_type
    num_parts = len(access.offsets[dst]) - 1
    starts = access.offsets[dst]
    owned = [access.to_original(dst, np.arange(starts[p], starts[p + 1])) for p in range(num_parts)]
    lists = [access.lists(edge_type, part) for part in range(num_parts)]
    colptr = np.zeros(access.num_nodes[dst] + 1, np.int64)
    for originals, (indptr, _indices) in zip(owned, lists, strict=True):
        colptr[originals + 1] = np.diff(indptr)
    np.cumsum(colptr, out=colptr)
    row = np.empty(colptr[-1], np.int64)
    for originals, (indptr, indices) in zip(owned, lists, strict=True):
        sources = access.to_original(src, np.asarray(indices, np.int64))
        place_runs(originals, np.diff(indptr), sources, colptr, row)
    return row, colptr
