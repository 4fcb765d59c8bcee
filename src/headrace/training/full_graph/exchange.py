"""Exchange of halo rows between trainers, as an operation that autograd can reverse."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor


class HaloExchange:
    """Appends to the rows of this trainer its halo: rows that others own.

    Creating it is a collective call: trainers tell each other which rows they need.

    Args:
        num_own: Rows of this trainer.
        trainers: Trainer of each halo row.
        rows: Row of each at its trainer.
        group: Process group of the trainers; None for a single process.

    Attributes:
        num_own: Rows of this trainer.
        num_halo: Halo rows.
        sent_bytes: Payload sent so far, forward and backward.
    """

    def __init__(
        self, num_own: int, trainers: np.ndarray, rows: np.ndarray, group: Any = None
    ) -> None:
        self.num_own, self.num_halo, self.sent_bytes = num_own, len(rows), 0
        self._group = group
        self._constants: dict[int, Tensor] = {}
        self._derived: dict[Hashable, Tensor] = {}
        self._is_idle = True
        if group is None:
            return
        size, order = dist.get_world_size(group), np.argsort(trainers, kind="stable")
        # Rows arrive by trainer.
        self._places = torch.from_numpy(np.argsort(order))
        self._is_ordered = bool((order[1:] > order[:-1]).all())
        wanted = torch.from_numpy(np.bincount(trainers, minlength=size))
        counts = torch.empty_like(wanted)
        dist.all_to_all_single(counts, wanted, group=group)
        self._received: list[int] = wanted.tolist()
        self._sent: list[int] = counts.tolist()
        self._rows = torch.empty(sum(self._sent), dtype=torch.int64)
        needed = torch.from_numpy(np.asarray(rows, np.int64)[order])
        dist.all_to_all_single(self._rows, needed, self._sent, self._received, group=group)
        total = wanted.sum()
        dist.all_reduce(total, group=group)
        self._is_idle = int(total) == 0

    @property
    def num_sent(self) -> int:
        """Rows sent forward in an exchange; backward, their gradients are received."""
        return 0 if self._group is None else sum(self._sent)

    def keep(self, tensor: Tensor) -> None:
        """Declare a tensor of the batch: its halo is exchanged once, unless it is changed."""
        self._constants[id(tensor)] = tensor

    def is_kept(self, tensor: Tensor) -> bool:
        """Whether a tensor is one of the batch."""
        return id(tensor) in self._constants

    def extend(self, own: Tensor, dim: int = 0) -> Tensor:
        """Append the halo rows along a dimension; a collective call."""
        if self._is_idle:
            return own
        if not self.is_kept(own) or own.requires_grad:
            return self._append(own, dim)
        return self.derive((id(own), own._version, dim), lambda: self._append(own, dim))

    def derive(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """Compute a tensor that depends only on the batch's once, by its key."""
        if key not in self._derived:
            self._derived[key] = make()
        return self._derived[key]

    def _append(self, own: Tensor, dim: int) -> Tensor:
        rows = own.movedim(dim, 0)
        halo: Tensor = _HaloRows.apply(rows, self)  # type: ignore[no-untyped-call]
        return torch.cat([rows, halo]).movedim(0, dim)

    def forward(self, own: Tensor) -> Tensor:
        """Halo rows of all trainers' rows."""
        rows = own.index_select(0, self._rows.to(own.device))
        found = self._swap(rows, self._sent, self._received)
        return found if self._is_ordered else found[self._places.to(found.device)]

    def backward(self, gradients: Tensor) -> Tensor:
        """Sums of the gradients of halo rows at the trainers that own them."""
        if not self._is_ordered:
            ordered = torch.empty_like(gradients)
            ordered[self._places.to(gradients.device)] = gradients
            gradients = ordered
        given = self._swap(gradients.contiguous(), self._received, self._sent)
        sums = given.new_zeros(self.num_own, *given.shape[1:])
        return sums.index_add_(0, self._rows.to(given.device), given)

    def _swap(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        found = torch.empty(sum(received), *rows.shape[1:], dtype=rows.dtype)
        dist.all_to_all_single(found, rows.cpu(), received, sent, group=self._group)
        self.sent_bytes += rows.nbytes
        return found.to(rows.device)


class _HaloRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, exchange: HaloExchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.forward(own)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.backward(gradients[0]), None


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
