"""Sums of neighbours' rows by columns: tensor parallelism along the features.

A sum treats every column alike. Each trainer gets some columns of the rows of all nodes, adds them
up along all edges of the graph, and sends every trainer the sums of its nodes. The values sent do
not depend on the parts, and all trainers compute alike, even if one part has most edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from headrace.core.column_slices import slice_widths
from headrace.training.full_graph.exchange import HaloExchange
from headrace.training.full_graph.linear_sums import SparseMatrix
from headrace.training.full_graph.swap import Swap


class ColumnSum:
    """Weighted sums of source rows for this trainer's nodes, by columns.

    Creating it is a collective call: trainers tell each other their edges, so that each has all of
    them.

    Args:
        exchange: Exchange of the sources' rows.
        edges: Sources, halo rows behind own rows, and destinations.
        weights: Weight of each edge; None for 1.
        num_destinations: Nodes of this trainer that edges may end at.
        is_mean: Whether sums are divided by the number of edges.
        like: A tensor with the type and device of rows.
    """

    def __init__(
        self,
        exchange: HaloExchange,
        edges: Tensor,
        weights: Tensor | None,
        num_destinations: int,
        is_mean: bool,
        like: Tensor,
    ) -> None:
        self._exchange = exchange
        self._rank = dist.get_rank(exchange.group)
        self._sources, self._destinations = node_counts(exchange, num_destinations)
        source, destination = edges.cpu()
        # Gloo has no 16-bit types everywhere.
        exact = torch.promote_types(like.dtype, torch.float32)
        values = torch.ones(len(source), dtype=exact)
        if weights is not None:
            values = weights.detach().cpu().to(exact)
        if is_mean:
            degrees = torch.bincount(destination, minlength=num_destinations)
            values = values / degrees.clamp(min=1).to(exact)[destination]
        firsts = np.cumsum([0, *self._sources])
        numbers = np.concatenate(
            [firsts[self._rank] + np.arange(exchange.num_own),
             firsts[exchange.trainers] + exchange.rows]
        )  # fmt: skip
        every = self._from_all(
            torch.from_numpy(numbers)[source].int(),
            (destination + sum(self._destinations[: self._rank])).int(),
            values,
        )
        self._matrix = SparseMatrix(
            every[1].long().to(like.device),
            every[0].long().to(like.device),
            every[2].to(like),
            (sum(self._destinations), sum(self._sources)),
        )
        self._swaps: dict[int, tuple[Swap, Swap]] = {}

    def __call__(self, rows: Tensor, number: int | None = None) -> Tensor:
        """Sums of rows; a collective call.

        Args:
            rows: Rows of this trainer.
            number: Number of the swap in a training step; None in an evaluation.
        """
        found: Tensor = _Product.apply(rows, self, number)  # type: ignore[no-untyped-call]
        return found

    def forward(self, rows: Tensor, number: int | None) -> Tensor:
        """Sums for this trainer's nodes."""
        there, back = self._swaps_of(rows.shape[1])
        columns = self._columns(there, rows, self._sources, number, is_back=False)
        return self._rows(back, self._matrix.multiply(columns), self._destinations, number, False)

    def backward(self, gradients: Tensor, number: int | None) -> Tensor:
        """Gradients of this trainer's rows."""
        there, back = self._swaps_of(gradients.shape[1])
        columns = self._columns(back, gradients, self._destinations, number, is_back=True)
        columns = self._matrix.multiply_transposed(columns)
        return self._rows(there, columns, self._sources, number, True)

    def _columns(
        self, swap: Swap, rows: Tensor, nums: Sequence[int], number: int | None, is_back: bool
    ) -> Tensor:
        """This trainer's columns of all rows, of which this trainer has some."""
        widths, rank = self._widths(rows.shape[1]), self._rank
        slices = list(rows.split(widths, dim=1))
        own = slices.pop(rank).reshape(-1)
        given = torch.cat([own[:0], *(each.reshape(-1) for each in slices)])
        found = swap.start(given, number, is_back).wait()
        first = sum(nums[:rank]) * widths[rank]
        whole = torch.cat([found[:first], own, found[first:]])
        return whole.view(sum(nums), widths[rank])

    def _rows(
        self, swap: Swap, columns: Tensor, nums: Sequence[int], number: int | None, is_back: bool
    ) -> Tensor:
        """All columns of this trainer's rows, of some columns of all rows."""
        rank, width = self._rank, swap.num_columns
        widths = self._widths(width)
        first = sum(nums[:rank])
        own, end = columns[first : first + nums[rank]], first + nums[rank]
        given = torch.cat([columns[:first].reshape(-1), columns[end:].reshape(-1)])
        found = swap.start(given, number, is_back).wait()
        sizes = [0 if u == rank else each * nums[rank] for u, each in enumerate(widths)]
        parts = [
            own if u == rank else part.view(nums[rank], widths[u])
            for u, part in enumerate(found.split(sizes))
        ]
        return torch.cat(parts, dim=1)

    def _widths(self, width: int) -> list[int]:
        widths: list[int] = slice_widths(width, len(self._sources)).tolist()
        return widths

    def _swaps_of(self, width: int) -> tuple[Swap, Swap]:
        """Swaps of values: of columns, and of their sums."""
        if width not in self._swaps:
            widths, rank = self._widths(width), self._rank
            there = (
                [self._sources[rank] * each for each in widths],
                [each * widths[rank] for each in self._sources],
            )
            back = (
                [each * widths[rank] for each in self._destinations],
                [self._destinations[rank] * each for each in widths],
            )
            for values in (*there, *back):
                values[rank] = 0
            self._swaps[width] = (
                self._exchange.swap_of(*there, True, "columns", width),
                self._exchange.swap_of(*back, True, "rows", width),
            )
        return self._swaps[width]

    def _from_all(self, *own: Tensor) -> list[Tensor]:
        """Arrays of all trainers, in their order; each trainer has as many of all kinds."""
        num = torch.tensor(len(own[0]))
        nums = [torch.empty_like(num) for _ in self._sources]
        dist.all_gather(nums, num, group=self._exchange.group)
        found = []
        for each in own:
            parts = []
            for rank, size in enumerate(map(int, nums)):
                part = each.contiguous() if rank == self._rank else each.new_empty(size)
                dist.broadcast(part, group=self._exchange.group, group_src=rank)
                parts.append(part)
            found.append(torch.cat(parts))
        return found


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sums: ColumnSum, number: int | None) -> Tensor:
        ctx.sums, ctx.number = sums, number
        return sums.forward(rows, number)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.sums.backward(gradients[0], ctx.number), None, None


def node_counts(exchange: HaloExchange, num_destinations: int) -> tuple[list[int], list[int]]:
    """Nodes of each trainer that edges begin at, and that they may end at; a collective call."""
    own = torch.tensor([exchange.num_own, num_destinations])
    every = [torch.empty_like(own) for _ in range(dist.get_world_size(exchange.group))]
    dist.all_gather(every, own, group=exchange.group)
    sources, destinations = torch.stack(every).T.tolist()
    return sources, destinations
