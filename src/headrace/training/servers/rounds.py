"""Trainers meet at a server, round after round: all bring gradients, then all get parameters.

Everything that is asked may be asked again, as happens when a connection breaks: what has been done
is not done twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.core.errors import SpecError
from headrace.training.servers.learning import LearningShard
from headrace.training.servers.recipes import Options

Done = Callable[[int, float, float], None]
"""Takes an iteration, and when the server began and ended it."""


@dataclass(frozen=True)
class Shape:
    """What all trainers must say alike of a model.

    Attributes:
        optimizer: Name of a torch optimizer.
        num_groups: Groups of parameters, each with options of its own.
        lengths: Of each piece that is here.
        groups: Of each piece.
        dtype: Of all numbers.
    """

    optimizer: str
    num_groups: int
    lengths: tuple[int, ...]
    groups: tuple[int, ...]
    dtype: str

    @property
    def num_elements(self) -> int:
        """How many numbers are here."""
        return sum(self.lengths)


@dataclass(frozen=True)
class Brought:
    """What a trainer brings to a round.

    Attributes:
        gradients: Of all numbers.
        present: Which pieces have any.
        options: Of the optimizer; rank 0 brings them.
        values: Other values to start from, if rank 0 has changed them by hand.
    """

    gradients: np.ndarray
    present: np.ndarray
    options: Sequence[Options] | None = None
    values: np.ndarray | None = None


class Rounds:
    """One model at one server; threads of all trainers share it.

    Args:
        num_trainers: How many bring gradients.
        shape: Of the model.
        clock: Seconds.
        done: Told of every round.
    """

    def __init__(
        self, num_trainers: int, shape: Shape, clock: Callable[[], float], done: Done
    ) -> None:
        self.shape = shape
        self._num_trainers = num_trainers
        self._clock, self._done = clock, done
        self._changed = threading.Condition()
        self._shard: LearningShard | None = None
        self._num_rounds = 0
        self._brought: dict[int, Brought] = {}

    def begin(self, options: Sequence[Options], values: np.ndarray) -> None:
        """Take the first values, those of rank 0."""
        shape = self.shape
        with self._changed:
            if self._shard is None:
                self._shard = LearningShard(
                    shape.optimizer, options, shape.lengths, shape.groups, values
                )
                self._changed.notify_all()

    def bring(self, rank: int, number: int, iteration: int, brought: Brought) -> None:
        """Bring gradients; whoever is last makes the round.

        Args:
            rank: Who brings them.
            number: Of the round, from 1.
            iteration: Of the training, to tell.
            brought: What is brought.

        Raises:
            SpecError: It is not the turn of this round, or something has another shape.
        """
        self._check(brought)
        with self._changed:
            if number == self._num_rounds and self._shard is not None:
                return
            if number != self._num_rounds + 1 or self._shard is None:
                raise SpecError(
                    f"rank {rank} brings gradients of step {number}, {self._num_rounds} are done",
                    "see that all trainers call step() as often",
                )
            self._brought.setdefault(rank, brought)
            if len(self._brought) < self._num_trainers:
                return
            began_s = self._clock()
            self._make_round(self._shard)
            self._num_rounds = number
            self._done(iteration, began_s, self._clock())
            self._changed.notify_all()

    def values(self, number: int, timeout_s: float) -> np.ndarray | None:
        """Parameters after a round; none if it is not over in time.

        Nobody else can change them before whoever asks brings its next gradients.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._shard is not None and self._num_rounds >= number, timeout_s
            )
            if self._shard is None or self._num_rounds < number:
                return None
            return self._shard.values

    def missing(self) -> list[int]:
        """Ranks that the round waits for."""
        with self._changed:
            if self._shard is None:
                return [0]
            return [rank for rank in range(self._num_trainers) if rank not in self._brought]

    def with_shard(self) -> LearningShard:
        """The shard, between two rounds.

        Raises:
            SpecError: Rank 0 has not been here yet.
        """
        if self._shard is None:
            raise SpecError("rank 0 has not brought this model", "prepare it first")
        return self._shard

    def _make_round(self, shard: LearningShard) -> None:
        first = self._brought[0]
        if first.values is not None:
            shard.set_values(first.values)
        if first.options is not None:
            shard.set_options(first.options)
        ranks = [self._brought[rank] for rank in range(self._num_trainers)]
        shard.step([each.gradients for each in ranks], [each.present for each in ranks])
        self._brought.clear()

    def _check(self, brought: Brought) -> None:
        numbers = [brought.gradients] if brought.values is None else [
            brought.gradients, brought.values,
        ]  # fmt: skip
        wanted = ((self.shape.num_elements,), np.dtype(self.shape.dtype))
        for array in numbers:
            if (array.shape, array.dtype) != wanted:
                raise SpecError(f"{array.dtype} {array.shape} was sent", f"send {wanted}")
        has = brought.present
        if (has.shape, has.dtype) != ((len(self.shape.lengths),), np.dtype(bool)):
            raise SpecError(
                f"{has.dtype} {has.shape} says which pieces have gradients",
                f"send bool ({len(self.shape.lengths)},)",
            )
