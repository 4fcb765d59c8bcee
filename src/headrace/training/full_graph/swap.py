"""Rows that trainers send to each other: as they are, rounded, or those of the step before."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from headrace.core.errors import SpecError
from headrace.core.full_graph import Slices
from headrace.graph.kernels.encoding import (
    HEADER_BYTES,
    decode_bytes,
    decode_nibbles,
    encode_quantised,
)
from headrace.training.full_graph.assumed import Sent, is_assumed
from headrace.training.full_graph.matchings import RoundTransfers

Rounding = Literal["int8", "int4"]
Parallelism = Literal["rows", "features", "auto"]


class FullGraphOptions(TypedDict, total=False):
    """Settings of full-graph training.

    Attributes:
        rounding: `int8` or `int4` to send rows and their gradients with a scale and an offset per
            row; not exact. Constant rows and those of an evaluation are sent as they are.
        is_stale: Whether a training step uses the rows and gradients that others sent in the step
            before, while its own are sent; not exact.
        bins: Into how many bins of nodes a layer's messages are divided; those of a bin are
            computed again in the backward pass, so that one bin at a time needs memory.
        matchings: Whether a trainer sends to one other at a time, in rounds that keep the busiest
            trainer's card busy, instead of to all at once.
        parallelism: What trainers divide in layers that add up rows. With `rows`, each adds up for
            its nodes, and gets the rows of others that it needs. With `features`, each adds up some
            columns of all nodes along all edges, which it keeps in memory. `auto` is what sends
            fewer bytes through the busiest trainer. By default it is what the plan says, or `rows`.
    """

    rounding: Rounding | None
    is_stale: bool
    bins: int
    matchings: bool
    parallelism: Parallelism | None


class SwapNotes(Protocol):
    """Measurement of a swap."""

    def wait(self) -> None:
        """The rows are needed."""

    def end(self) -> None:
        """The rows are here."""


class SwapWatch(Protocol):
    """Measures swaps; called when one starts."""

    def __call__(
        self,
        row_bytes: int,
        is_sum: bool,
        is_back: bool,
        sent_bytes: list[int],
        edges: str,
        slices: Slices,
        /,
    ) -> SwapNotes | None:
        """See `Swap`; `sent_bytes` are those to each trainer."""


@dataclass
class SwapPolicy:
    """How rows are sent, and the number of the swap in a training step.

    Attributes:
        rounding: See `FullGraphOptions`.
        is_stale: See `FullGraphOptions`.
        transfers: Sends rows in rounds, if set; otherwise a trainer sends to all others at once.
        is_training: Whether a training step runs.
        watch: Measures the swaps of training steps, if set.
        parallelism: See `FullGraphOptions`; None for what is planned.
        planned: Edge type and bytes of the rows that the plan divides by features.
    """

    rounding: Rounding | None = None
    is_stale: bool = False
    parallelism: Parallelism | None = None
    transfers: RoundTransfers | None = None
    is_training: bool = False
    watch: SwapWatch | None = None
    planned: Collection[tuple[str, float]] = ()
    _number: int = 0

    def __post_init__(self) -> None:
        if self.rounding not in (None, "int8", "int4"):
            raise SpecError(f"rows cannot be sent as {self.rounding!r}", "use 'int8' or 'int4'")
        if self.parallelism not in (None, "rows", "features", "auto"):
            raise SpecError(
                f"there is no parallelism {self.parallelism!r}", "use 'rows', 'features' or 'auto'"
            )
        if self.parallelism == "features" and not self.is_exact:
            raise SpecError(
                "parallelism='features' sends no rows that can be rounded or stale",
                "omit `rounding` and `is_stale`, or use parallelism='rows'",
            )

    @property
    def is_exact(self) -> bool:
        """Whether rows are sent as they are and used in their step."""
        return self.rounding is None and not self.is_stale

    def begin(self, is_training: bool) -> None:
        """A forward pass of the model begins."""
        self.is_training, self._number = is_training, 0

    def next_number(self) -> int | None:
        """Number of the next swap of a training step; None in an evaluation."""
        self._number += 1
        return self._number if self.is_training else None


@dataclass
class Pending:
    """Rows on their way; those sent are kept until all have arrived."""

    work: Any
    sent: Tensor
    received: Tensor
    shape: tuple[int, ...]
    like: Tensor
    rounding: Rounding | None = None
    notes: SwapNotes | None = None
    _rows: Tensor | None = field(default=None, repr=False)

    def wait(self) -> Tensor:
        """The received rows."""
        if self._rows is None:
            if self.notes is not None:
                self.notes.wait()
            self.work.wait()
            if self.notes is not None:
                self.notes.end()
            rows = self.received
            if self.rounding is not None:
                rows = _decoded(rows, self.rounding, self.shape)
            self._rows = rows.to(self.like)
            self.sent = self.received = self.like.new_empty(0)
        return self._rows


class Swap:
    """Sends rows to all trainers, and their gradients back.

    Args:
        sent: Rows for each trainer, or values of slices.
        received: Rows of each trainer, or values of slices.
        group: Process group of the trainers.
        policy: How rows are sent.
        is_sum: Whether some rows are sums.
        edges: Edge type of the rows; empty for all.
        slices: What is cut in slices, if not rows but single values are sent.
        num_columns: Values of the rows that are cut in slices.

    Attributes:
        num_columns: Values of the rows that are cut in slices.
        sent_bytes: Payload sent so far, forward and backward.
    """

    def __init__(
        self,
        sent: list[int],
        received: list[int],
        group: Any,
        policy: SwapPolicy,
        is_sum: bool = False,
        edges: str = "",
        slices: Slices = "",
        num_columns: int = 0,
    ) -> None:
        self.sent, self.received, self.sent_bytes = sent, received, 0
        self.num_columns, self._cut = num_columns, slices
        self._group, self._policy, self._is_sum = group, policy, is_sum
        self._edges = edges
        self._before: dict[tuple[int, bool], Pending] = {}
        transfers = policy.transfers
        self._slices = None if transfers is None else transfers.slices_of(sent)

    def start(
        self,
        rows: Tensor,
        number: int | None = None,
        is_back: bool = False,
        joint: JointSwap | None = None,
    ) -> Pending:
        """Send rows, or gradients of received rows; a collective call.

        Args:
            rows: By receiver.
            number: Number of the swap in a training step; None to send the rows as they are.
            is_back: Whether these are gradients, from the receivers to the senders.
            joint: Swaps that are measured as one with this one.
        """
        now = self._send(rows, None if number is None else self._policy.rounding, is_back)
        if number is None:
            return now
        if not self._policy.is_stale:
            self._watch(now, is_back, joint or JointSwap([self]))
            return now
        before = self._before.get((number, is_back), now)
        self._before[number, is_back] = now
        return before if before.shape == now.shape else now

    def _watch(self, now: Pending, is_back: bool, joint: JointSwap) -> None:
        if self._policy.watch is None:
            return
        if joint.notes is None:
            unit = math.prod(now.sent.shape[1:]) * now.sent.element_size()
            sizes = [each.received if is_back else each.sent for each in joint.swaps]
            sent_bytes = [unit * sum(nums) for nums in zip(*sizes, strict=True)]
            row_bytes = unit * (self.num_columns or 1)
            joint.notes = self._policy.watch(
                row_bytes, self._is_sum, is_back, sent_bytes, self._edges, self._cut
            )
        now.notes = joint

    def _send(self, rows: Tensor, rounding: Rounding | None, is_back: bool) -> Pending:
        sent, received = (self.received, self.sent) if is_back else (self.sent, self.received)
        shape = (sum(received), *rows.shape[1:])
        given = rows.detach().contiguous().cpu()
        if not given.is_floating_point() or is_assumed(self._group):
            rounding = None
        if rounding is not None:
            given = _encoded(given, rounding)
        found = torch.empty(shape[0], *given.shape[1:], dtype=given.dtype)
        transfers = self._policy.transfers
        work: Any
        if is_assumed(self._group):
            found.zero_()
            work = Sent()
        elif transfers is None or self._slices is None:
            work = dist.all_to_all_single(
                found, given, received, sent, group=self._group, async_op=True
            )
        else:
            work = transfers.start(found, given, self._slices, is_back)
        self.sent_bytes += given.nbytes
        return Pending(work, given, found, shape, rows.new_empty(0), rounding)


class JointSwap:
    """Swaps that are measured as one: from the first start to the last end.

    Args:
        swaps: The swaps.
    """

    def __init__(self, swaps: Sequence[Swap]) -> None:
        self.swaps = swaps
        self.notes: SwapNotes | None = None
        self._num_waits = self._num_ends = 0

    def wait(self) -> None:
        """The rows of one are needed."""
        self._num_waits += 1
        if self._num_waits == 1 and self.notes is not None:
            self.notes.wait()

    def end(self) -> None:
        """The rows of one are here."""
        self._num_ends += 1
        if self._num_ends == len(self.swaps) and self.notes is not None:
            self.notes.end()


def _encoded(rows: Tensor, rounding: Rounding) -> Tensor:
    values = rows.to(torch.float32).reshape(len(rows), math.prod(rows.shape[1:])).numpy()
    width = values.shape[1] if rounding == "int8" else (values.shape[1] + 1) // 2
    encoded = np.zeros((len(values), HEADER_BYTES + 4 * -(-width // 4)), np.uint8)
    headers = encoded.view(np.float32)
    levels, first = 255 if rounding == "int8" else 15, 0
    while (bad := encode_quantised(values[first:], levels, encoded[first:], headers[first:])) >= 0:
        # Not finite: all values of the row become NaN, so that the trainer reports it.
        headers[first + bad, :2] = np.nan
        first += bad + 1
    return torch.from_numpy(encoded)


def _decoded(encoded: Tensor, rounding: Rounding, shape: tuple[int, ...]) -> Tensor:
    codes = encoded.numpy()
    rows = np.arange(len(codes))
    out = np.empty((len(codes), math.prod(shape[1:])), np.float32)
    decode = decode_bytes if rounding == "int8" else decode_nibbles
    decode(codes, codes.view(np.float32), rows, rows, out)
    return torch.from_numpy(out).reshape(shape)
