"""Sums of neighbours' rows that come in groups, so that those of a group travel meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.training.full_graph.linear_sums import LinearSum
from headrace.training.full_graph.swap import Pending


class SumOfGroups:
    """One call of a sum whose rows come in groups; several may be on their way.

    Each group but the last is a bin of the sum.

    Args:
        sums: The sum.
        number: Number of the swap in a training step; None to send the rows as they are.
    """

    def __init__(self, sums: LinearSum, number: int | None) -> None:
        self.sums, self.number = sums, number
        self.pending: list[Pending | None] = []
        self.pending_back: list[Pending] = []
        self._joint, self._rows = sums.joint(), list[Tensor]()
        self._back: dict[int, Tensor] = {}

    def send(self, which: int, rows: Tensor) -> Tensor:
        """Begin to send what others need of a bin; returns its rows for `finish`."""
        sent: Tensor = _Sending.apply(rows, self, which)  # type: ignore[no-untyped-call]
        return sent

    def finish(self, groups: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Sums for all groups, as soon as the others' rows are here."""
        self._rows.clear()
        found: tuple[Tensor, ...] = _Finishing.apply(self, *groups)  # type: ignore[no-untyped-call]
        return found

    def begin(self, which: int, rows: Tensor) -> None:
        """Begin to send a bin."""
        self._rows.append(rows)
        above = rows if not which else torch.cat(self._rows)
        self.pending.append(self.sums.begin(above, self.number, which, self._joint))

    def begin_back(self, gradients: Tensor) -> Tensor:
        """Begin to send gradients of received rows; returns those of own rows so far."""
        own, self.pending_back = self.sums.begin_back(gradients, self.number)
        self._back.clear()
        return own

    def gradients(self, which: int) -> Tensor | None:
        """What others have sent to the gradients of a bin; waits for this and all later bins."""
        found, ends = None, (0, *self.sums.ends)
        for later in range(len(self.pending_back) - 1, which - 1, -1):
            if later not in self._back:
                self._back[later] = self.sums.end_back(self.pending_back[later], later)
            own = self._back[later][ends[which] : ends[which + 1]]
            found = own if found is None else found + own
        return found


class _Sending(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, call: SumOfGroups, which: int) -> Tensor:
        ctx.call, ctx.which = call, which
        call.begin(which, rows)
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        others = ctx.call.gradients(ctx.which)
        return gradients[0] if others is None else gradients[0] + others, None, None


class _Finishing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: SumOfGroups, *groups: Tensor) -> tuple[Tensor, ...]:
        ctx.call, ctx.sizes = call, list(map(len, groups))
        found = call.sums.end(torch.cat(groups), call.pending)
        # No views: layers may change them in place.
        return tuple(each.clone() for each in found.split(ctx.sizes))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        call: SumOfGroups = ctx.call
        return (None, *call.begin_back(torch.cat(gradients)).split(ctx.sizes))
