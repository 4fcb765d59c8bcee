"""Layers that add up rows of neighbours, as products with sparse matrices.

Many layers of PyG add up rows of sources, with a constant weight per edge (GCN, GraphSAGE with
`mean`, GIN, ...). Such a sum is a product with the adjacency matrix: no message per edge is made.
Between two trainers each edge is served by its source's row, or is part of a sum for its
destination that the source's trainer computes; the fewest rows are a minimum vertex cover.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import MeanAggregation, SumAggregation

from headrace.graph.kernels.vertex_cover import cover
from headrace.training.full_graph.assumed import (
    SizedMatrix,
    is_assumed,
    is_traced,
    multiply,
    num_trainers,
)
from headrace.training.full_graph.exchange import HaloExchange
from headrace.training.full_graph.swap import JointSwap, Pending, Swap


def _row(self: Any, x_j: Any) -> Any:
    return x_j


def _weighted(self: Any, x_j: Any, edge_weight: Any) -> Any:
    return edge_weight.view(-1, 1) * x_j


def _weighted_if_given(self: Any, x_j: Any, edge_weight: Any) -> Any:
    return x_j if edge_weight is None else edge_weight.view(-1, 1) * x_j


_LINEAR = (_row, _weighted, _weighted_if_given)
_HOOKS = ("propagate", "message", "aggregate", "message_and_aggregate")


def _meaning(function: Any) -> tuple[Any, ...] | None:
    """What a function computes: equal for functions of the same text."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    constants = code.co_consts
    if constants and isinstance(constants[0], str):
        # A docstring.
        constants = (None, *constants[1:])
    return code.co_code, constants, code.co_names, code.co_varnames


_MEANINGS = frozenset(map(_meaning, _LINEAR))


def is_linear(layer: Any) -> bool:
    """Whether a layer's `propagate` adds up rows of sources, times the weights of edges."""
    kind = type(layer)
    return (
        _meaning(kind.message) in _MEANINGS
        and kind.aggregate is MessagePassing.aggregate
        and kind.update is MessagePassing.update
        and getattr(kind, "_orig_propagate", kind.propagate) is MessagePassing.propagate
        and type(layer.aggr_module) in (SumAggregation, MeanAggregation)
        and layer.node_dim == -2
        and not any(
            getattr(layer, f"_{name}_forward{when}_hooks", None)
            for name in _HOOKS
            for when in ("", "_pre")
        )
    )


class SparseMatrix:
    """A sparse matrix and its transpose.

    Args:
        rows: Row of each entry.
        columns: Column of each entry.
        values: Values; those of the same place are added up.
        shape: Numbers of rows and columns.
    """

    def __init__(self, rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]):
        self._forward = _compressed(rows, columns, values, shape)
        self._backward = _compressed(columns, rows, values, (shape[1], shape[0]))

    def multiply(self, rows: Tensor) -> Tensor:
        """The product with dense rows."""
        return multiply(self._forward, rows)

    def multiply_transposed(self, rows: Tensor) -> Tensor:
        """The product of the transpose."""
        return multiply(self._backward, rows)


def _compressed(
    rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]
) -> Tensor | SizedMatrix:
    # Ordered; values of the same place are added up.
    places, entries = torch.unique(rows * shape[1] + columns, return_inverse=True)
    sums = values.new_zeros(len(places)).index_add_(0, entries, values)
    bounds = torch.arange(shape[0] + 1, device=rows.device) * shape[1]
    starts = torch.searchsorted(places, bounds)
    # 32-bit indices are MKL's own: others are converted in every product.
    narrow = torch.int32 if max(len(places), *shape) < 2**31 else torch.int64
    within = places % max(shape[1], 1)
    if is_traced():
        return SizedMatrix((starts.to(narrow), within.to(narrow), sums), shape)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            starts.to(narrow), within.to(narrow), sums, shape, check_invariants=True
        )


@dataclass(frozen=True)
class _Requests:
    """What a trainer needs of another: rows, and sums by edges; in numbers of the other's rows."""

    rows: np.ndarray
    num_sums: int
    edge_rows: np.ndarray
    edge_sums: np.ndarray
    edge_weights: np.ndarray


@dataclass(frozen=True)
class _Bin:
    """Rows and sums that are sent together."""

    swap: Swap
    sent: SparseMatrix
    received: SparseMatrix


class LinearSum:
    """Weighted sums of source rows for this trainer's nodes.

    Creating it is a collective call: trainers tell each other which rows and sums they need.

    Args:
        exchange: Exchange of the sources' rows.
        edges: Sources, halo rows behind own rows, and destinations.
        weights: Weight of each edge; None for 1.
        num_destinations: Nodes of this trainer that edges may end at.
        is_mean: Whether sums are divided by the number of edges.
        like: A tensor with the type and device of rows.
        place: Number of each own row, if rows come in another order; those that others need first.
        ends: Where the bins of the rows that others need end, in that order; rows of a bin are
            sent before those of the next are known.
    """

    def __init__(
        self,
        exchange: HaloExchange,
        edges: Tensor,
        weights: Tensor | None,
        num_destinations: int,
        is_mean: bool,
        like: Tensor,
        place: Tensor | None = None,
        ends: Sequence[int] | None = None,
    ) -> None:
        self._exchange, self._like = exchange, like.new_empty(0)
        self._place = place
        self.ends = (exchange.num_own,) if ends is None else tuple(ends)
        source, destination = edges.cpu()
        if place is not None:
            halo = torch.arange(exchange.num_own, exchange.num_own + exchange.num_halo)
            source, destination = torch.cat([place, halo])[source], place[destination]
        values = torch.ones(len(source), dtype=like.dtype)
        if weights is not None:
            values = weights.detach().cpu().to(like.dtype)
        factors = torch.ones(num_destinations, dtype=like.dtype)
        if is_mean:
            degrees = torch.bincount(destination, minlength=num_destinations)
            factors = 1 / degrees.clamp(min=1).to(like.dtype)
        own = source < exchange.num_own
        self._own = self._matrix(
            destination[own], source[own], (values * factors[destination])[own],
            (num_destinations, exchange.num_own),
        )  # fmt: skip
        self._bins: list[_Bin] = []
        if exchange.is_idle:
            return
        far = ~own
        self._serve(source[far] - exchange.num_own, destination[far], values[far], factors)

    def __call__(self, rows: Tensor, number: int | None = None) -> Tensor:
        """Sums of rows; a collective call.

        Args:
            rows: Rows of this trainer.
            number: Number of the swap in a training step; None to send the rows as they are.
        """
        found: Tensor = _Product.apply(rows, self, number)  # type: ignore[no-untyped-call]
        return found

    @property
    def num_sent(self) -> list[int]:
        """Rows and sums that this trainer sends to each."""
        sent = [each.swap.sent for each in self._bins]
        return [sum(nums) for nums in zip(*sent, strict=True)]

    def joint(self) -> JointSwap:
        """The swaps of all bins, to measure them as one."""
        return JointSwap([each.swap for each in self._bins])

    def begin(
        self, rows: Tensor, number: int | None, which: int, joint: JointSwap
    ) -> Pending | None:
        """Begin to send what depends on the rows of a bin, and of those before.

        Args:
            rows: All rows up to the end of the bin, or more.
            number: Number of the swap in a training step; None to send the rows as they are.
            which: The bin.
            joint: The swaps of this call's bins.
        """
        if not self._bins:
            return None
        own = self._bins[which]
        given = own.sent.multiply(rows[: self.ends[which]])
        return own.swap.start(given, number, joint=joint)

    def end(self, rows: Tensor, pending: Sequence[Pending | None]) -> Tensor:
        """Sums of rows: those of own rows are computed while others' are on their way."""
        sums = self._own.multiply(rows)
        for own, each in zip(self._bins, pending, strict=False):
            if each is not None:
                sums.add_(own.received.multiply(each.wait()))
        return sums

    def begin_back(self, gradients: Tensor, number: int | None) -> tuple[Tensor, list[Pending]]:
        """Begin to send gradients of received rows; returns those of own rows so far, too.

        Those of the last bin are sent first.
        """
        joint = self.joint()
        pending = [
            own.swap.start(own.received.multiply_transposed(gradients), number, True, joint)
            for own in reversed(self._bins)
        ]
        return self._own.multiply_transposed(gradients), pending[::-1]

    def end_back(self, pending: Pending, which: int) -> Tensor:
        """What others have sent to the gradients of the rows up to the end of a bin."""
        return self._bins[which].sent.multiply_transposed(pending.wait())

    def _matrix(
        self, rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]
    ) -> SparseMatrix:
        device = self._like.device
        return SparseMatrix(rows.to(device), columns.to(device), values.to(self._like), shape)

    def _serve(self, halo: Tensor, destination: Tensor, values: Tensor, factors: Tensor) -> None:
        """Agree with all trainers about rows and sums, and prepare the products for them."""
        exchange = self._exchange
        trainers, rows = exchange.trainers, exchange.rows
        needed, matrix, num = [], [], 0
        for trainer in range(num_trainers(exchange.group)):
            theirs = torch.from_numpy(trainers[halo.numpy()] == trainer)
            request, entries = _divide(
                rows, halo[theirs], destination[theirs], values[theirs], num, factors
            )
            needed.append(request)
            matrix.append(entries)
            num += len(request.rows) + request.num_sums
        given = _tell(needed, exchange)
        received = [len(each.rows) + each.num_sums for each in needed]
        sent = [len(each.rows) + each.num_sums for each in given]
        ends, numbers, shares = (torch.cat(each) for each in zip(*matrix, strict=True))
        places, columns, weights = _entries_sent(given)
        if self._place is not None:
            columns = self._place[columns]
        # A sum is sent with the last bin of its rows.
        bin_of = torch.zeros(sum(sent), dtype=torch.int64)
        bounds = torch.tensor(self.ends[:-1], dtype=torch.int64)
        bin_of.scatter_reduce_(0, places, torch.bucketize(columns, bounds, right=True), "amax")
        bin_there = torch.empty(num, dtype=torch.int64)
        if is_assumed(exchange.group):
            bin_there.fill_(0)
        else:
            dist.all_to_all_single(bin_there, bin_of, received, sent, group=exchange.group)
        for which, end in enumerate(self.ends):
            here, there = bin_of == which, bin_there == which
            is_sent, is_received = here[places], there[numbers]
            at, at_there = here.cumsum(0) - 1, there.cumsum(0) - 1
            swap = exchange.swap_of(_counts(here, sent), _counts(there, received), is_sum=True)
            self._bins.append(
                _Bin(
                    swap,
                    self._matrix(
                        at[places[is_sent]],
                        columns[is_sent],
                        weights[is_sent],
                        (sum(swap.sent), end),
                    ),
                    self._matrix(
                        ends[is_received],
                        at_there[numbers[is_received]],
                        shares[is_received],
                        (len(factors), sum(swap.received)),
                    ),
                )
            )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sums: LinearSum, number: int | None) -> Tensor:
        ctx.sums, ctx.number = sums, number
        joint = sums.joint()
        pending = [sums.begin(rows, number, which, joint) for which in range(len(sums.ends))]
        return sums.end(rows, pending)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        sums: LinearSum = ctx.sums
        own, pending = sums.begin_back(gradients[0], ctx.number)
        for which, each in enumerate(pending):
            own[: sums.ends[which]] += sums.end_back(each, which)
        return own, None, None


def _divide(
    rows: np.ndarray,
    halo: Tensor,
    destination: Tensor,
    values: Tensor,
    first: int,
    factors: Tensor,
) -> tuple[_Requests, tuple[Tensor, Tensor, Tensor]]:
    """Divide the edges from a trainer into those served by rows, and those that are in sums.

    Returns:
        What to request, and the entries of the matrix of received rows, which begin at `first`.
    """
    sources, left = np.unique(halo.numpy(), return_inverse=True)
    ends, right = np.unique(destination.numpy(), return_inverse=True)
    by_rows = served_by_rows(left, right, len(sources), len(ends))
    picked, at_row = np.unique(left[by_rows], return_inverse=True)
    summed, at_sum = np.unique(right[~by_rows], return_inverse=True)
    request = _Requests(
        rows[sources[picked]],
        len(summed),
        rows[sources[left[~by_rows]]],
        at_sum,
        np.ones((~by_rows).sum()) if is_traced() else values.numpy()[~by_rows],
    )
    is_row = torch.from_numpy(by_rows)
    sums_end = torch.from_numpy(ends[summed])
    entries = (
        torch.cat([destination[is_row], sums_end]),
        torch.cat([torch.from_numpy(at_row), len(picked) + torch.arange(len(summed))]) + first,
        torch.cat([values[is_row] * factors[destination[is_row]], factors[sums_end]]),
    )
    return request, entries


def served_by_rows(
    left: np.ndarray, right: np.ndarray, num_left: int, num_right: int
) -> np.ndarray:
    """Whether each edge is served by its source's row, in the exchange with the fewest rows."""
    order = np.argsort(left, kind="stable")
    indptr = np.searchsorted(left[order], np.arange(num_left + 1))
    of_rows, _ = cover(indptr, right[order], num_right)
    served: np.ndarray = of_rows[left]
    return served


def _counts(mask: Tensor, sizes: list[int]) -> list[int]:
    """How many of each trainer are set."""
    return [int(each.sum()) for each in mask.split(sizes)]


def _tell(needed: list[_Requests], exchange: HaloExchange) -> list[_Requests]:
    """Send each trainer what is needed of it; returns what they need of this one."""
    group, none = exchange.group, np.empty(0, np.int64)
    if is_assumed(group):
        # At most: they may need sums instead of some rows.
        sent = [each.numpy() for each in exchange.sent_rows.split(exchange.num_sent)]
        return [_Requests(each, 0, none, none, none) for each in sent]
    sizes = [(len(each.rows), each.num_sums, len(each.edge_rows)) for each in needed]
    theirs = torch.empty(len(needed), 3, dtype=torch.int64)
    dist.all_to_all_single(theirs, torch.tensor(sizes), group=group)

    def swap(pick: Callable[[_Requests], np.ndarray], column: int, dtype: Any) -> list[np.ndarray]:
        given = torch.from_numpy(np.concatenate([pick(each) for each in needed]).astype(dtype))
        counts = theirs[:, column].tolist()
        found = torch.empty(sum(counts), dtype=given.dtype)
        own = [len(pick(each)) for each in needed]
        dist.all_to_all_single(found, given, counts, own, group=group)
        return [each.numpy() for each in found.split(counts)]

    rows = swap(lambda each: each.rows, 0, np.int64)
    edge_rows = swap(lambda each: each.edge_rows, 2, np.int64)
    edge_sums = swap(lambda each: each.edge_sums, 2, np.int64)
    weights = swap(lambda each: each.edge_weights, 2, np.float64)
    nums = theirs[:, 1].tolist()
    return [
        _Requests(*each) for each in zip(rows, nums, edge_rows, edge_sums, weights, strict=True)
    ]


def _entries_sent(given: list[_Requests]) -> tuple[Tensor, Tensor, Tensor]:
    """Entries of the matrix of sent rows: rows of each trainer, then its sums."""
    places, columns, values, first = [], [], [], 0
    for each in given:
        num_rows = len(each.rows)
        places += [first + np.arange(num_rows), first + num_rows + each.edge_sums]
        columns += [each.rows, each.edge_rows]
        values += [np.ones(num_rows), each.edge_weights]
        first += num_rows + each.num_sums
    found = [torch.from_numpy(np.concatenate(each)) for each in (places, columns, values)]
    return found[0], found[1], found[2]
