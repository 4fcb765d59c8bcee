"""A model's forward pass in groups of rows, so that computing overlaps the exchange.

The rows that other trainers need are computed first, in bins. Each bin is on its way while the
model computes the next one, and at last all other rows, up to the same layer. In the backward pass
the gradients of the other rows are computed first, and those of the bins in reverse order as soon
as others have sent theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.nn import MessagePassing

from headrace.training.full_graph.exchange import HaloExchange
from headrace.training.full_graph.group_sums import SumOfGroups
from headrace.training.full_graph.linear_sums import LinearSum

NUM_BINS = 3
"""Bins of the rows that others need: more begin to send earlier, and cost more calls."""


class NotDivisibleError(Exception):
    """A model cannot compute groups of rows one after the other."""


class _CancelledError(Exception):
    """The forward pass of another group has failed."""


class RowGroups:
    """Groups of this trainer's rows: bins of rows that others need, and the other rows last.

    Args:
        exchange: Exchange of the rows.
        num_bins: Bins of the rows that others need.

    Attributes:
        sizes: Rows of each group.
        ends: Where the bins end, in the order of `place`.
        place: Number of each row, if the rows of a group follow those of the group before.
        active: Group whose forward pass runs; None outside of one.
    """

    def __init__(self, exchange: HaloExchange, num_bins: int) -> None:
        is_first = torch.zeros(exchange.num_own, dtype=torch.bool)
        is_first[exchange.sent_rows] = True
        self._order = torch.cat([is_first.nonzero(), (~is_first).nonzero()]).flatten()
        self.place = torch.empty_like(self._order)
        self.place[self._order] = torch.arange(exchange.num_own)
        num_first = int(is_first.sum())
        self.ends = tuple(num_first * (1 + each) // num_bins for each in range(num_bins))
        bounds = (0, *self.ends, exchange.num_own)
        self.sizes = tuple(b - a for a, b in pairwise(bounds))
        self._rows = self._order.split(self.sizes)
        self.active: int | None = None
        self._exchange, self._last = exchange, num_bins
        self._turns = [threading.Semaphore(0) for _ in self.sizes]
        self._failed: BaseException | None = None
        self._round: list[tuple[LinearSum, Tensor, SumOfGroups | None]] = []
        self._found: list[Tensor | None] = []
        self._num_nodes = 0

    def call(self, forward: Callable[..., Any], args: tuple[Any, ...], given: Any) -> Any:
        """Call a model's forward for all groups.

        Args:
            forward: The method.
            args: Its arguments; tensors with a row per node are divided.
            given: Its arguments by name.

        Raises:
            NotDivisibleError: Its layers have other edges or rows than those of the batch.
        """
        groups = range(len(self.sizes))
        parts = [
            ([self._part(each, number) for each in args],
             {name: self._part(each, number) for name, each in given.items()})
            for number in groups
        ]  # fmt: skip
        outs: list[Any] = [None for _ in groups]
        self._failed, self._round = None, []
        self._turns = [threading.Semaphore(0) for _ in groups]
        settings = _ThreadSettings()

        def run(number: int) -> None:
            try:
                if number:
                    self._turns[number].acquire()
                if self._failed is None:
                    with settings.applied():
                        if number < self._last and settings.is_learning:
                            _record_nodes(number * self._num_nodes)
                        self.active = number
                        outs[number] = forward(*parts[number][0], **parts[number][1])
            except BaseException as error:
                self._failed = self._failed or error
            finally:
                self._turns[(number + 1) % len(groups)].release()

        # Autograd runs what this thread has recorded before what new ones have, and of these what
        # was recorded with higher numbers: the last group and then the bins in reverse order.
        bins = [
            threading.Thread(target=run, args=(number,), name="rows", daemon=True)
            for number in range(self._last)
        ]
        for each in bins:
            each.start()
        run(self._last)
        for each in bins:
            each.join()
        self.active, self._round, self._found = None, [], []
        if self._failed is not None:
            raise self._failed
        if any(not isinstance(out, Tensor) for out in outs) or tuple(map(len, outs)) != self.sizes:
            raise NotDivisibleError
        if outs[0].grad_fn is not None:
            self._num_nodes = outs[0].grad_fn._sequence_nr() + 1
        return torch.cat(outs).index_select(0, self.place.to(outs[0].device))

    def add_up(self, sums: LinearSum, rows: Tensor) -> Tensor:
        """Sums for the rows of the active group; the groups meet here.

        Args:
            sums: In the numbers of `place`.
            rows: Rows of the active group.
        """
        number = self.active
        if number is None or len(self._round) != number:
            raise NotDivisibleError
        is_constant = self._exchange.is_kept(rows) and not rows.requires_grad
        call = self._round[0][2] if self._round else None
        if not number and not is_constant:
            call = SumOfGroups(sums, self._exchange.policy.next_number())
        if (call is None) != is_constant or any(each is not sums for each, _, _ in self._round):
            raise NotDivisibleError
        if call is not None and number < self._last:
            rows = call.send(number, rows)
        self._round.append((sums, rows, call))
        if number == self._last:
            self._found = list(self._finish(sums, call, [own for _, own, _ in self._round]))
            self._round = []
        self._switch(number)
        found, self._found[number] = self._found[number], None
        if found is None:
            raise NotDivisibleError
        return found

    def _finish(
        self, sums: LinearSum, call: SumOfGroups | None, rows: list[Tensor]
    ) -> Sequence[Tensor]:
        if call is not None:
            return call.finish(rows)
        key = ("sums", id(sums), *map(id, rows))
        found: Sequence[Tensor] = self._exchange.derive(
            key, lambda: sums(torch.cat(rows)).split(self.sizes)
        )
        return found

    def _part(self, value: Any, number: int) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0 or len(value) != sum(self.sizes):
            return value
        order = self._rows[number].to(value.device)
        if not self._exchange.is_kept(value) or value.requires_grad:
            return value.index_select(0, order)
        key = ("rows", id(value), value._version, number)
        part: Tensor = self._exchange.derive(key, lambda: value.index_select(0, order))
        self._exchange.keep(part)
        return part

    def _switch(self, number: int) -> None:
        """Let the next groups run until it is the turn of this one."""
        self._turns[(number + 1) % len(self.sizes)].release()
        self._turns[number].acquire()
        if self._failed is not None:
            raise _CancelledError
        self.active = number


class _ThreadSettings:
    """Settings of autograd and autocast, which each thread has of its own."""

    def __init__(self) -> None:
        self.is_learning = torch.is_grad_enabled()
        self._is_inference = torch.is_inference_mode_enabled()
        self._casts = {
            device: torch.get_autocast_dtype(device)
            for device in ("cpu", "cuda")
            if torch.is_autocast_enabled(device)
        }

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Settings of the thread that created this."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self._is_inference))
            stack.enter_context(torch.set_grad_enabled(self.is_learning))
            for device, dtype in self._casts.items():
                stack.enter_context(torch.autocast(device, dtype))
            yield


def _record_nodes(num: int) -> None:
    """Raise the number of what this thread records next."""
    one = torch.zeros(1, requires_grad=True)
    for _ in range(num):
        one.view(1)


def can_overlap(model: nn.Module, is_linear: Callable[[Any], bool]) -> bool:
    """Whether all layers of a model add up rows, and nothing else connects rows."""
    layers = [each for each in model.modules() if isinstance(each, MessagePassing)]
    norms = [each for each in model.modules() if isinstance(each, _BatchNorm)]
    return (
        not isinstance(model, MessagePassing)
        and bool(layers)
        and not norms
        and all(map(is_linear, layers))
    )
