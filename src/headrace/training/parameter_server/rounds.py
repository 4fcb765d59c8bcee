"""Sync rounds of a model at a parameter server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.core.errors import SpecError
from headrace.rpc.sync_rounds import SyncRounds
from headrace.training.parameter_server.optimizer_shard import OptimizerShard, sum_by_rank
from headrace.training.parameter_server.trial import FAILURES
from headrace.training.parameter_server.types import Options

Done = Callable[[int, float, float], None]
"""Called with an iteration, and its start and end on the server."""


@dataclass(frozen=True)
class Shape:
    """Properties of a model that must be equal on all trainers.

    Attributes:
        optimizer: Name of a torch optimizer.
        num_groups: Number of parameter groups.
        lengths: Length of each piece in this shard.
        groups: Parameter group of each piece.
        dtype: Dtype of all values.
    """

    optimizer: str
    num_groups: int
    lengths: tuple[int, ...]
    groups: tuple[int, ...]
    dtype: str

    @property
    def num_elements(self) -> int:
        """Number of elements in this shard."""
        return sum(self.lengths)


@dataclass(frozen=True)
class GradientPush:
    """What a trainer pushes in a sync round.

    Attributes:
        gradients: Gradients of all elements.
        present: Which pieces have gradients.
        holds: Whether to hold the step until `scale` is called.
        options: Options of the optimizer, from rank 0.
        values: New parameter values, if rank 0's script has changed them.
    """

    gradients: np.ndarray
    present: np.ndarray
    holds: bool = False
    options: Sequence[Options] | None = None
    values: np.ndarray | None = None


@dataclass(frozen=True)
class _Sum:
    """Sum of the gradients of a sync round."""

    iteration: int
    total: np.ndarray
    present: np.ndarray
    took_s: float


class ModelRounds(SyncRounds[GradientPush]):
    """Sync rounds of one model at one server; after each, all trainers get the parameters."""

    def __init__(
        self, num_trainers: int, shape: Shape, clock: Callable[[], float], done: Done
    ) -> None:
        super().__init__(num_trainers)
        self.shape = shape
        self._clock, self._done = clock, done
        self._shard: OptimizerShard | None = None
        self._num_rounds = self._iteration = 0
        self._sum: _Sum | None = None
        self._square: tuple[int, float] = (0, 0.0)
        self._failure: SpecError | None = None

    @property
    def num_rounds(self) -> int:
        """Number of completed sync rounds."""
        return self._num_rounds

    def begin(self, options: Sequence[Options], values: np.ndarray) -> None:
        """Set the initial values, those of rank 0."""
        shape = self.shape
        with self._changed:
            if self._shard is None:
                self._shard = OptimizerShard(
                    shape.optimizer, options, shape.lengths, shape.groups, values
                )
                self._changed.notify_all()

    def push(self, rank: int, number: int, iteration: int, gradient_push: GradientPush) -> None:
        """Push gradients of a sync round; the last trainer completes it, unless it is held."""
        self._check(gradient_push)
        with self._changed:
            is_held = self._sum is not None and self._is_next(number)
            if not is_held and self._is_new(rank, number):
                self._check_step(rank, gradient_push)
                self._iteration = iteration
                self._collect(rank, gradient_push)

    def scale(self, number: int, factor: float) -> None:
        """Complete a held sync round, with the summed gradients multiplied by `factor`."""
        with self._changed:
            if self._is_done(number):
                return
            self._check_next(number, f"step {number} is to be scaled")
            if self._sum is None:
                raise SpecError(f"step {number} has no gradients yet", "push them first")
            self.with_shard().check_next(None)
            if factor != 1:
                self._sum.total[:] *= self._sum.total.dtype.type(factor)
            self._step(self._sum)
            self._changed.notify_all()

    def square(self, number: int, timeout_s: float) -> float | None:
        """Squared norm of the summed gradients; None after the timeout.

        The sync round may be completed when the last trainer calls this.
        """
        with self._changed:
            is_known = self._wait(lambda: self._square[0] == number, timeout_s)
            return self._square[1] if is_known else None

    def values(self, number: int, timeout_s: float) -> np.ndarray | None:
        """Parameters after a sync round; None if it is not completed within the timeout.

        They cannot change before the caller pushes its next gradients.
        """
        with self._changed:
            is_ready = self._wait(
                lambda: self._shard is not None and self._num_rounds >= number, timeout_s
            )
            return self.with_shard().values if is_ready else None

    def missing(self) -> list[int]:
        """Ranks that have not pushed gradients yet; rank 0 until it has registered the model."""
        return [0] if self._shard is None else super().missing()

    def with_shard(self) -> OptimizerShard:
        """The shard, between two sync rounds; raises `SpecError` before it is registered."""
        if self._failure is not None:
            raise self._failure
        if self._shard is None:
            raise SpecError("rank 0 has not registered this model", "prepare it first")
        return self._shard

    def _is_done(self, number: int) -> bool:
        return self._shard is not None and number == self._num_rounds

    def _is_next(self, number: int) -> bool:
        return self._shard is not None and super()._is_next(number)

    def _apply(self, pushes: list[GradientPush]) -> None:
        first, shard = pushes[0], self.with_shard()
        if first.values is not None:
            shard.set_values(first.values)
        if first.options is not None:
            shard.set_options(first.options)
        began_s = self._clock()
        total = sum_by_rank([each.gradients for each in pushes])
        present = np.any([each.present for each in pushes], axis=0)
        if any(each.holds for each in pushes):
            self._square = (self._num_rounds + 1, _square_of(total))
        self._sum = _Sum(self._iteration, total, present, self._clock() - began_s)
        if not first.holds:
            self._step(self._sum)

    def _step(self, made: _Sum) -> None:
        began_s = self._clock()
        try:
            self.with_shard().step(made.total, made.present)
        except FAILURES as error:
            # A part of the model may have changed: nobody gets it.
            problem = f"{self.shape.optimizer} failed in step {self._num_rounds + 1}: {error}"
            self._failure = SpecError(problem, "restart the run from its last checkpoint")
            raise self._failure from None
        self._sum = None
        self._num_rounds += 1
        # The time between summing and scaling is not the server's.
        self._done(made.iteration, began_s - made.took_s, self._clock())

    def _check_step(self, rank: int, gradient_push: GradientPush) -> None:
        """Check that the step works, as far as it is known."""
        shard, options = self.with_shard(), gradient_push.options
        if options is None and 0 in self._pushes:
            options = self._pushes[0][0].options
        if gradient_push.options is not None or self._complete | {rank} >= set(
            range(self._num_trainers)
        ):
            shard.check_next(options)

    def _check(self, gradient_push: GradientPush) -> None:
        wanted = ((self.shape.num_elements,), np.dtype(self.shape.dtype))
        for array in (gradient_push.gradients, gradient_push.values):
            if array is not None and (array.shape, array.dtype) != wanted:
                raise SpecError(f"{array.dtype} {array.shape} was sent", f"send {wanted}")
        has = gradient_push.present
        if (has.shape, has.dtype) != ((len(self.shape.lengths),), np.dtype(bool)):
            raise SpecError(
                f"the mask of pieces with gradients is {has.dtype} {has.shape}",
                f"send bool ({len(self.shape.lengths)},)",
            )


def _square_of(total: np.ndarray) -> float:
    exact = total.astype(np.float64)
    return float(exact @ exact)
