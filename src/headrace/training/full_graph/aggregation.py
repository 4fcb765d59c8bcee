"""The aggregation of a layer that adds up rows, as a product that is prepared once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch_geometric.nn.aggr import MeanAggregation

from headrace.training.full_graph.exchange import HaloExchange
from headrace.training.full_graph.linear_sums import LinearSum
from headrace.training.full_graph.row_groups import RowGroups


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

    def make() -> LinearSum:
        order = () if groups is None else (groups.place, groups.ends)
        return LinearSum(exchange, edges, weights, num_destinations, is_mean, rows, *order)

    sums: LinearSum = exchange.derive(key, make)
    if groups is not None:
        return groups.add_up(sums, rows)
    if exchange.is_kept(rows) and not rows.requires_grad:
        found: Tensor = exchange.derive((*key, id(rows), rows._version), lambda: sums(rows))
        return found
    return sums(rows, exchange.policy.next_number())
