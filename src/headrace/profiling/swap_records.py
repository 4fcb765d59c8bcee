"""Swaps of rows in a full-graph run, from the records of its trainers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core.full_graph import RowSwap


@dataclass(frozen=True)
class SwapTimes:
    """A trainer's swap of rows.

    Attributes:
        start_s: When it began to send.
        wait_s: When it needed what others send.
        end_s: When that was there.
        sent_bytes: Bytes to each trainer.
        swap: Bytes of a row, and whether these are sums or gradients.
    """

    start_s: float
    wait_s: float
    end_s: float
    sent_bytes: Sequence[int]
    swap: RowSwap


class SwapRecords:
    """Swaps of all trainers by epoch.

    Args:
        num_trainers: Number of trainers.
    """

    def __init__(self, num_trainers: int) -> None:
        self._num_trainers = num_trainers
        self._found: dict[int, dict[int, list[SwapTimes]]] = defaultdict(lambda: defaultdict(list))

    def add(self, trainer: int, record: Sequence[Any], offset_s: float) -> None:
        """Add a record of a trainer, from its iteration on."""
        n, start_s, wait_s, end_s, row_bytes, is_sum, is_back, sent_bytes, *more = record
        times = (start_s + offset_s, wait_s + offset_s, end_s + offset_s)
        swap = RowSwap(
            row_bytes=row_bytes,
            is_sum=bool(is_sum),
            is_back=bool(is_back),
            edges=more[0] if more else "",
            slices=more[1] if len(more) > 1 else "",
        )
        self._found[int(n)][trainer].append(SwapTimes(*times, sent_bytes, swap))

    def usual(self) -> tuple[RowSwap, ...]:
        """Swaps of most epochs that all trainers have recorded."""
        counts = Counter(self._swaps(n) for n in self._found)
        del counts[()]
        return max(counts, key=lambda swaps: counts[swaps], default=())

    def epochs(self) -> Iterator[tuple[int, list[list[SwapTimes]]]]:
        """Epochs with the usual swaps: their number, and the swaps of each trainer."""
        usual = self.usual()
        for n in sorted(self._found):
            if usual and self._swaps(n) == usual:
                yield n, [self._ordered(n, trainer) for trainer in range(self._num_trainers)]

    def _swaps(self, n: int) -> tuple[RowSwap, ...]:
        """Swaps of an epoch; empty if those of the trainers differ."""
        every = {
            tuple(each.swap for each in self._ordered(n, trainer))
            for trainer in range(self._num_trainers)
        }
        return every.pop() if len(every) == 1 else ()

    def _ordered(self, n: int, trainer: int) -> list[SwapTimes]:
        return sorted(self._found[n].get(trainer, ()), key=lambda each: each.start_s)
