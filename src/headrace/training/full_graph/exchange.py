"""Exchange of halo rows between trainers, as an operation that autograd can reverse."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from headrace.core.full_graph import Slices
from headrace.training.full_graph.assumed import is_assumed, num_trainers
from headrace.training.full_graph.swap import Swap, SwapPolicy


class HaloExchange:
    """Appends to the rows of this trainer its halo: rows that others own.

    Creating it is a collective call: trainers tell each other which rows they need.

    Args:
        num_own: Rows of this trainer.
        trainers: Trainer of each halo row.
        rows: Row of each at its trainer.
        group: Process group of the trainers; None for a single process.
        policy: How rows are sent; as they are if not given.
        edges: Edge type of the rows; empty for all.
        needed: Rows that each trainer needs, if the group's trainers are only assumed.

    Attributes:
        num_own: Rows of this trainer.
        num_halo: Halo rows.
        trainers: Trainer of each halo row.
        rows: Row of each at its trainer.
        group: Process group of the trainers; None for a single process.
        policy: How rows are sent.
        edges: Edge type of the rows; empty for all.
        is_idle: Whether no trainer has halo rows.
    """

    def __init__(
        self,
        num_own: int,
        trainers: np.ndarray,
        rows: np.ndarray,
        group: Any = None,
        policy: SwapPolicy | None = None,
        edges: str = "",
        needed: Sequence[np.ndarray] = (),
    ) -> None:
        self.num_own, self.num_halo = num_own, len(rows)
        self.trainers, self.rows = trainers, np.asarray(rows, np.int64)
        self.group, self.policy = group, policy or SwapPolicy()
        self.edges = edges
        self._constants: dict[int, Tensor] = {}
        self._derived: dict[Hashable, Any] = {}
        self._swaps: list[Swap] = []
        self.is_idle = True
        if group is None:
            return
        order = np.argsort(trainers, kind="stable")
        # Rows arrive by trainer.
        self._places = torch.from_numpy(np.argsort(order))
        self._is_ordered = bool((order[1:] > order[:-1]).all())
        wanted = torch.from_numpy(np.bincount(trainers, minlength=num_trainers(group)))
        if is_assumed(group):
            self._rows = torch.from_numpy(np.concatenate(needed))
            self._swap = self.swap_of(list(map(len, needed)), wanted.tolist())
            self.is_idle = not len(self._rows) and not self.num_halo
            return
        counts = torch.empty_like(wanted)
        dist.all_to_all_single(counts, wanted, group=group)
        received, sent = wanted.tolist(), counts.tolist()
        self._rows = torch.empty(sum(sent), dtype=torch.int64)
        asked = torch.from_numpy(self.rows[order])
        dist.all_to_all_single(self._rows, asked, sent, received, group=group)
        self._swap = self.swap_of(sent, received)
        total = wanted.sum()
        dist.all_reduce(total, group=group)
        self.is_idle = int(total) == 0

    @property
    def sent_bytes(self) -> int:
        """Payload sent so far, forward and backward."""
        return sum(swap.sent_bytes for swap in self._swaps)

    @property
    def sent_rows(self) -> Tensor:
        """Rows of this trainer that others need, by receiver."""
        return self._rows if self.group is not None else torch.empty(0, dtype=torch.int64)

    @property
    def num_sent(self) -> list[int]:
        """Number of these for each trainer."""
        return self._swap.sent

    def swap_of(
        self,
        sent: list[int],
        received: list[int],
        is_sum: bool = False,
        slices: Slices = "",
        num_columns: int = 0,
    ) -> Swap:
        """A swap with all trainers whose bytes count here; see `Swap`."""
        swap = Swap(
            sent, received, self.group, self.policy, is_sum, self.edges, slices, num_columns
        )
        self._swaps.append(swap)
        return swap

    def keep(self, tensor: Tensor) -> None:
        """Declare a tensor of the batch: its halo is exchanged once, unless it is changed."""
        self._constants[id(tensor)] = tensor

    def is_kept(self, tensor: Tensor) -> bool:
        """Whether a tensor is one of the batch."""
        return id(tensor) in self._constants

    def extend(self, own: Tensor, dim: int = 0, is_exact: bool = False) -> Tensor:
        """Append the halo rows along a dimension; a collective call.

        Args:
            own: Rows of this trainer.
            dim: The dimension.
            is_exact: Whether the rows are sent as they are and now, whatever the policy.
        """
        if self.is_idle:
            return own
        if not self.is_kept(own) or own.requires_grad:
            return self._append(own, dim, None if is_exact else self.policy.next_number())
        rows: Tensor = self.derive((id(own), own._version, dim), lambda: self._append(own, dim))
        return rows

    def derive(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Compute what depends only on the batch's tensors once, by its key."""
        if key not in self._derived:
            # Also for training, if an evaluation is first.
            with torch.inference_mode(False):
                self._derived[key] = make()
        return self._derived[key]

    def _append(self, own: Tensor, dim: int, number: int | None = None) -> Tensor:
        rows = own.movedim(dim, 0)
        halo: Tensor = _HaloRows.apply(rows, self, number)  # type: ignore[no-untyped-call]
        return torch.cat([rows, halo]).movedim(0, dim)

    def forward(self, own: Tensor, number: int | None) -> Tensor:
        """Halo rows of all trainers' rows."""
        rows = own.index_select(0, self._rows.to(own.device))
        found = self._swap.start(rows, number).wait()
        return found if self._is_ordered else found[self._places.to(found.device)]

    def backward(self, gradients: Tensor, number: int | None) -> Tensor:
        """Sums of the gradients of halo rows at the trainers that own them."""
        if not self._is_ordered:
            ordered = torch.empty_like(gradients)
            ordered[self._places.to(gradients.device)] = gradients
            gradients = ordered
        given = self._swap.start(gradients, number, is_back=True).wait()
        sums = given.new_zeros(self.num_own, *given.shape[1:])
        return sums.index_add_(0, self._rows.to(given.device), given)


class _HaloRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, exchange: HaloExchange, number: int | None) -> Tensor:
        ctx.exchange, ctx.number = exchange, number
        return exchange.forward(own, number)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.exchange.backward(gradients[0], ctx.number), None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _summed(value, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _summed(gradients[0], ctx.group), None


def _summed(value: Tensor, group: Any) -> Tensor:
    total = torch.empty(value.shape, dtype=value.dtype).copy_(value)
    if not is_assumed(group):
        dist.all_reduce(total, group=group)
    return total.to(value.device)


def sum_over_group(value: Tensor, group: Any) -> Tensor:
    """Sum a tensor over all trainers; a gradient of the sum is one of each summand."""
    total: Tensor = _Sum.apply(value, group)  # type: ignore[no-untyped-call]
    return total


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # A mean over no nodes has gradients that are not a number.
        scaled = gradients[0] * ctx.factor if ctx.factor else torch.zeros_like(gradients[0])
        return scaled, None


def scale_gradient(value: Tensor, factor: float) -> Tensor:
    """The same values, whose gradients are multiplied by a factor."""
    scaled: Tensor = _Scale.apply(value, factor)  # type: ignore[no-untyped-call]
    return scaled
