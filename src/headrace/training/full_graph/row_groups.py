"""A model's forward pass in two groups of rows, so that computing overlaps the exchange.

The rows that other trainers need are computed first. They are on their way while the model computes
all other rows up to the same layer. In the backward pass the gradients of the other rows are
computed while those of the first are on their way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.nn import MessagePassing

from headrace.training.full_graph.exchange import HaloExchange
from headrace.training.full_graph.linear_sums import LinearSum, SumOfGroups


class NotDivisibleError(Exception):
    """A model cannot compute two groups of rows one after the other."""


class _CancelledError(Exception):
    """The forward pass of the other group has failed."""


class RowGroups:
    """Two groups of this trainer's rows; the first has all rows that others need.

    Args:
        exchange: Exchange of the rows.

    Attributes:
        sizes: Rows of both groups.
        place: Number of each row, if those of the first group come first.
        active: Group whose forward pass runs; None outside of one.
    """

    def __init__(self, exchange: HaloExchange) -> None:
        is_first = torch.zeros(exchange.num_own, dtype=torch.bool)
        is_first[exchange.sent_rows] = True
        self._order = torch.cat([is_first.nonzero(), (~is_first).nonzero()]).flatten()
        self.place = torch.empty_like(self._order)
        self.place[self._order] = torch.arange(exchange.num_own)
        self.sizes = (int(is_first.sum()), int((~is_first).sum()))
        self.active: int | None = None
        self._exchange = exchange
        self._turns = [threading.Semaphore(0), threading.Semaphore(0)]
        self._failed: BaseException | None = None
        self._ended = [False, False]
        self._first: Any = None
        self._found: tuple[Tensor, Tensor] | None = None

    def call(self, forward: Callable[..., Any], args: tuple[Any, ...], given: Any) -> Any:
        """Call a model's forward for both groups.

        Args:
            forward: The method.
            args: Its arguments; tensors with a row per node are divided.
            given: Its arguments by name.

        Raises:
            NotDivisibleError: Its layers have other edges or rows than those of the batch.
        """
        parts = [
            ([self._part(each, number) for each in args],
             {name: self._part(each, number) for name, each in given.items()})
            for number in (0, 1)
        ]  # fmt: skip
        outs: list[Any] = [None, None]
        self._failed, self._ended = None, [False, False]
        is_learning = torch.is_grad_enabled()

        def run(number: int) -> None:
            try:
                if number:
                    self._turns[1].acquire()
                torch.set_grad_enabled(is_learning)
                if self._failed is None:
                    self.active = number
                    outs[number] = forward(*parts[number][0], **parts[number][1])
            except BaseException as error:
                self._failed = self._failed or error
            finally:
                self._ended[number] = True
                self._turns[1 - number].release()

        # Autograd runs what this thread has recorded before what a new one has: in the backward
        # pass the second group is computed while gradients for the first are on their way.
        first = threading.Thread(target=run, args=(0,), name="rows", daemon=True)
        first.start()
        run(1)
        first.join()
        self._turns = [threading.Semaphore(0), threading.Semaphore(0)]
        self.active = self._first = self._found = None
        if self._failed is not None:
            raise self._failed
        if any(not isinstance(out, Tensor) for out in outs) or tuple(map(len, outs)) != self.sizes:
            raise NotDivisibleError
        return torch.cat(outs).index_select(0, self.place.to(outs[0].device))

    def add_up(self, sums: LinearSum, rows: Tensor) -> Tensor:
        """Sums for the rows of the active group; the groups meet here.

        Args:
            sums: In the numbers of `place`.
            rows: Rows of the active group.
        """
        is_constant = self._exchange.is_kept(rows) and not rows.requires_grad
        if self.active == 0:
            call = None
            if not is_constant:
                call = SumOfGroups(sums, self._exchange.policy.next_number())
                rows = call.send(rows)
            self._first = sums, rows, call
            self._switch(0)
            assert self._found is not None
            return self._found[0]
        other, first, call = self._first
        if other is not sums or (call is None) != is_constant:
            raise NotDivisibleError
        if call is not None:
            self._found = call.finish(first, rows)
        else:
            key = ("sums", id(sums), id(first), id(rows))
            self._found = self._exchange.derive(
                key, lambda: sums(torch.cat([first, rows])).split(self.sizes)
            )
        _, found = self._found
        self._switch(1)
        return found

    def _part(self, value: Any, number: int) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0 or len(value) != sum(self.sizes):
            return value
        size = self.sizes[0]
        order = (self._order[:size] if number == 0 else self._order[size:]).to(value.device)
        if not self._exchange.is_kept(value) or value.requires_grad:
            return value.index_select(0, order)
        key = ("rows", id(value), value._version, number)
        part: Tensor = self._exchange.derive(key, lambda: value.index_select(0, order))
        self._exchange.keep(part)
        return part

    def _switch(self, number: int) -> None:
        """Let the other group run until it has to wait."""
        other = 1 - number
        if self._ended[other] and self._failed is None:
            raise NotDivisibleError
        self._turns[other].release()
        self._turns[number].acquire()
        if self._failed is not None:
            raise _CancelledError
        if number == 0 and self._ended[1]:
            raise NotDivisibleError
        self.active = number


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
