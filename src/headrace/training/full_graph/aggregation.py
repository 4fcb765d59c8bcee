"""The aggregation of a layer that adds up rows, as a product that is prepared once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch_geometric.nn.aggr import MeanAggregation

from headrace.core.column_slices import columns_are_fewer
from headrace.training.full_graph.assumed import is_assumed
from headrace.training.full_graph.column_sums import ColumnSum, node_counts
from headrace.training.full_graph.exchange import HaloExchange
from headrace.training.full_graph.linear_sums import LinearSum
from headrace.training.full_graph.row_groups import NotDivisibleError, RowGroups


def add_up(
    layer: Any,
    exchange: HaloExchange,
    edge_index: Tensor,
    edges: Tensor,
    num_destinations: int,
    given: Mapping[str, Any],
    groups: RowGroups | None = None,
) -> Tensor | None:
    """Compute `propagate` of a linear layer as a product; a collective call.

    Args:
        layer: The layer.
        exchange: Exchange of the sources' rows.
        edge_index: Edges that the layer got.
        edges: The same, with halo rows behind own rows.
        num_destinations: Nodes of this trainer that edges may end at.
        given: Arguments of `propagate`.
        groups: Groups of rows, if the model computes them one after the other.

    Returns:
        The sums; None if edges or weights are not constant, or rows have another shape.
    """
    x = given.get("x")
    rows = x[0] if isinstance(x, tuple | list) else x
    weights = given.get("edge_weight") if "edge_weight" in layer._user_args else None
    if not isinstance(rows, Tensor) or rows.dim() != 2 or not rows.is_floating_point():
        return None
    constants = [edge_index] if weights is None else [edge_index, weights]
    if any(not exchange.is_kept(each) or each.requires_grad for each in constants):
        return None
    if weights is not None and weights.dim() != 1:
        return None
    is_mean = type(layer.aggr_module) is MeanAggregation
    key = (
        *((id(each), each._version) for each in constants),
        num_destinations, is_mean, rows.dtype, rows.device, groups is None,
    )  # fmt: skip

    about = exchange, edges, weights, num_destinations, is_mean, rows

    def by_rows() -> LinearSum:
        order = () if groups is None else (groups.place, groups.ends)
        found: LinearSum = exchange.derive(key, lambda: LinearSum(*about, *order))
        return found

    sums: LinearSum | ColumnSum
    if _is_by_columns(exchange, rows, num_destinations, key, by_rows):
        if groups is not None:
            # A column needs the rows of all groups.
            raise NotDivisibleError
        sums = exchange.derive(("columns", *key), lambda: ColumnSum(*about))
    else:
        sums = by_rows()
        if groups is not None:
            return groups.add_up(sums, rows)
    if exchange.is_kept(rows) and not rows.requires_grad:
        found: Tensor = exchange.derive((*key, id(rows), rows._version), lambda: sums(rows))
        return found
    return sums(rows, exchange.policy.next_number())


def _is_by_columns(
    exchange: HaloExchange,
    rows: Tensor,
    num_destinations: int,
    key: tuple[Any, ...],
    by_rows: Callable[[], LinearSum],
) -> bool:
    """Whether a sum is computed by columns; the same for all trainers, a collective call."""
    policy, width = exchange.policy, rows.shape[1]
    if exchange.is_idle or is_assumed(exchange.group) or not policy.is_exact or not width:
        return False
    if policy.parallelism is None:
        return (exchange.edges, width * rows.element_size()) in policy.planned
    if policy.parallelism != "auto":
        return policy.parallelism == "features"

    def compare() -> bool:
        own = torch.tensor(by_rows().num_sent)
        every = [torch.empty_like(own) for _ in own]
        dist.all_gather(every, own, group=exchange.group)
        nodes = node_counts(exchange, num_destinations)
        return columns_are_fewer(torch.stack(every).numpy(), *nodes, width)

    found: bool = exchange.derive(("is by columns", *key, width), compare)
    return found
