"""An exchange of unequal sizes as rounds, in which every trainer has at most one receiver.

The most that a trainer sends or receives bounds every schedule from below, and rounds of matchings
reach the bound (Birkhoff).
"""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch import Tensor

Slice = tuple[int, slice]
"""Another trainer, and the rows for it or from it."""

_STOP_S = 5.0

Round = tuple[tuple[int, int], ...]
"""Receiver and number of rows of each sender; no rows for senders that are idle."""


def rounds_of(rows: ArrayLike) -> list[Round]:
    """Divide the rows from each sender to each receiver into rounds, longest first.

    In all rounds together, the longest transfers of each add up to the most rows that a trainer
    sends or receives.
    """
    left = np.array(rows, dtype=np.int64)
    padded = left + _padding(left)
    senders = np.arange(len(left))
    rounds: list[Round] = []
    while padded.any():
        receivers = _widest_matching(padded)
        num = padded[senders, receivers].min()
        padded[senders, receivers] -= num
        sent = np.minimum(left[senders, receivers], num)
        left[senders, receivers] -= sent
        if sent.any():
            rounds.append(tuple(zip(receivers.tolist(), sent.tolist(), strict=True)))
    return rounds


def _padding(rows: np.ndarray) -> np.ndarray:
    """Idle rows, with which all senders and all receivers have equally many."""
    sent, received = rows.sum(axis=1), rows.sum(axis=0)
    most = max(sent.max(initial=0), received.max(initial=0))
    to_send, to_receive = most - sent, most - received
    padding = np.zeros_like(rows)
    for a in range(len(rows)):
        # Onto itself first: this is no transfer of another.
        for b in sorted(range(len(rows)), key=lambda b: b != a):
            padding[a, b] = min(to_send[a], to_receive[b])
            to_send[a] -= padding[a, b]
            to_receive[b] -= padding[a, b]
    return padding


def _widest_matching(rows: np.ndarray) -> np.ndarray:
    """Receivers of all senders, with the most rows for the sender that has fewest."""
    values = np.unique(rows[rows > 0])
    low, high = 0, len(values) - 1
    found = _matching(rows >= values[0])
    assert found is not None  # Senders and receivers have equally many rows.
    while low < high:
        middle = (low + high + 1) // 2
        wider = _matching(rows >= values[middle])
        if wider is None:
            high = middle - 1
        else:
            low, found = middle, wider
    return found


def _matching(allowed: np.ndarray) -> np.ndarray | None:
    """A receiver for every sender, if there is one."""
    sender_of = np.full(len(allowed), -1)

    def finds(sender: int, seen: set[int]) -> bool:
        for receiver in np.flatnonzero(allowed[sender]).tolist():
            if receiver in seen:
                continue
            seen.add(receiver)
            if sender_of[receiver] < 0 or finds(int(sender_of[receiver]), seen):
                sender_of[receiver] = sender
                return True
        return False

    if not all(finds(sender, set()) for sender in range(len(allowed))):
        return None
    return np.argsort(sender_of)


@dataclass(frozen=True)
class Slices:
    """What a trainer sends and receives in an exchange, round by round."""

    sent: list[Slice]
    received: list[Slice]


@dataclass
class _Transfer:
    """Sends and receives of an exchange; those of the rounds before have to end first."""

    sends: list[tuple[int, Tensor]]
    receives: list[Any]
    tag: int
    has_sent: threading.Event = field(default_factory=threading.Event)
    error: RuntimeError | None = None

    def send(self, group: Any) -> None:
        """Send the rounds one after the other."""
        try:
            for receiver, rows in self.sends:
                work = dist.isend(rows, group_dst=receiver, group=group, tag=self.tag)
                if work is not None:
                    work.wait()
        except RuntimeError as error:
            self.error = error
        self.sends.clear()
        self.has_sent.set()

    def wait(self) -> None:
        """Wait until all rows are sent and received."""
        for work in self.receives:
            work.wait()
        self.has_sent.wait()
        if self.error is not None:
            raise self.error


class RoundTransfers:
    """Sends exchanges in rounds, one exchange after the other.

    Args:
        group: Process group of the trainers.
    """

    def __init__(self, group: Any) -> None:
        self._group, self._rank = group, dist.get_rank(group)
        self._tags = itertools.count(1)
        self._queue: queue.SimpleQueue[_Transfer | None] = queue.SimpleQueue()
        # A daemon: a send to a trainer that is gone must not keep the process.
        self._thread = threading.Thread(target=self._send, name="row-rounds", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def slices_of(self, sent: Sequence[int]) -> Slices:
        """Rounds of an exchange in which this trainer sends so many rows; a collective call."""
        own = torch.tensor(sent)
        every = [torch.empty_like(own) for _ in sent]
        dist.all_gather(every, own, group=self._group)
        rows, rank = torch.stack(every).numpy(), self._rank
        to, of = ([0, *np.cumsum(each).tolist()] for each in (rows[rank], rows[:, rank]))
        slices = Slices([], [])
        for each in rounds_of(rows):
            for sender, (receiver, num) in enumerate(each):
                if not num:
                    continue
                if sender == rank:
                    slices.sent.append((receiver, slice(to[receiver], to[receiver] + num)))
                    to[receiver] += num
                if receiver == rank:
                    slices.received.append((sender, slice(of[sender], of[sender] + num)))
                    of[sender] += num
        return slices

    def start(self, found: Tensor, given: Tensor, slices: Slices, is_back: bool) -> _Transfer:
        """Send rows and receive others; `is_back` from receivers to senders."""
        to, of = (slices.received, slices.sent) if is_back else (slices.sent, slices.received)
        tag = next(self._tags)
        receives = [
            dist.irecv(found[rows], group_src=sender, group=self._group, tag=tag)
            for sender, rows in of
        ]
        transfer = _Transfer([(receiver, given[rows]) for receiver, rows in to], receives, tag)
        self._queue.put(transfer)
        return transfer

    def _send(self) -> None:
        while (transfer := self._queue.get()) is not None:
            transfer.send(self._group)

    def _stop(self) -> None:
        """End the thread: a send that returns while the interpreter ends would abort it."""
        self._queue.put(None)
        self._thread.join(_STOP_S)
