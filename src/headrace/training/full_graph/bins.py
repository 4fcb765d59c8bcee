"""Messages of a layer bin by bin, so that those of one bin at a time need memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Bins:
    """Edges by bins of their destinations.

    Attributes:
        bounds: First destination of each bin, and their number.
        edge_ids: Numbers of each bin's edges.
        order: All of these, one bin after the other.
    """

    bounds: list[int]
    edge_ids: list[Tensor]
    order: Tensor

    @classmethod
    def of_edges(cls, edges: Tensor, num_destinations: int, num_bins: int) -> Bins:
        """Divide the destinations into bins with about as many edges each."""
        order = torch.argsort(edges[1], stable=True)
        last = torch.bincount(edges[1], minlength=num_destinations).cumsum(0)
        # In whole numbers, whose values a trace knows.
        steps = torch.arange(1, num_bins, device=last.device) * edges.shape[1]
        cuts = torch.searchsorted(last * num_bins, steps)
        bounds = sorted({0, num_destinations, *cuts.clamp(max=num_destinations).tolist()})
        starts = [0 if each == 0 else int(last[each - 1]) for each in bounds]
        sizes = [end - start for start, end in pairwise(starts)]
        return cls(bounds, list(order.split(sizes)), order)


def in_bins(
    compute: Callable[..., Tensor],
    bins: Bins,
    edges: Tensor,
    num_sources: int,
    given: Mapping[str, Any],
    lifted: Mapping[str, int],
    dim: int | None,
) -> Tensor | None:
    """Call `propagate` or `edge_updater` for each bin of destinations.

    What a bin computes is computed again in the backward pass.

    Args:
        compute: The method; takes edges, `size` and the arguments.
        bins: The bins.
        edges: Sources and destinations.
        num_sources: Rows that edges may begin at.
        given: Arguments: rows of nodes, and values of edges.
        lifted: Names of those that are rows of nodes, with their dimension of nodes.
        dim: Dimension of nodes in the result; None if the result has a row per edge.

    Returns:
        The result; None if an argument is neither.
    """
    num_edges, num_nodes = edges.shape[1], bins.bounds[-1]
    of_edges = set()
    for name, value in given.items():
        if name in lifted or not isinstance(value, Tensor) or value.dim() == 0:
            continue
        if len(value) != num_edges or num_edges == num_nodes:
            return None
        of_edges.add(name)

    def part(number: int) -> Tensor:
        first, end = bins.bounds[number], bins.bounds[number + 1]
        own = bins.edge_ids[number]
        values = dict(given)
        for name in of_edges:
            values[name] = given[name][own]
        for name, where in lifted.items():
            value = given.get(name)
            # Rows of destinations only are not in a pair.
            source, destination = value if isinstance(value, tuple | list) else (None, value)
            if isinstance(destination, Tensor):
                destination = destination.narrow(where, first, end - first)
            if value is not None:
                values[name] = source, destination
        picked = edges[:, own] - edges.new_tensor([[0], [first]])
        return compute(picked, size=(num_sources, end - first), **values)

    parts = [checkpoint(part, number, use_reentrant=False) for number in range(len(bins.edge_ids))]
    if dim is not None:
        return torch.cat(parts, dim)
    places = torch.empty_like(bins.order)
    places[bins.order] = torch.arange(num_edges, device=places.device)
    return torch.cat(parts)[places]
