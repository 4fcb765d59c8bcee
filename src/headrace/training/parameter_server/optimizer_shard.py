"""A server's shard: numbers, and the optimizer that changes them by the gradients of all trainers.

Gradients are summed in the order of ranks, whoever comes first, so that the same gradients give the
same parameters to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from headrace.core.errors import SpecError
from headrace.training.parameter_server.optimizer_specs import SCALARS
from headrace.training.parameter_server.types import Options


def sum_by_rank(gradients: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of what trainers have, in the order of their ranks."""
    total = gradients[0].copy()
    for more in gradients[1:]:
        total += more
    return total


class OptimizerShard:
    """One shard of one model.

    Args:
        optimizer: Name of a torch optimizer.
        options: Of each group of parameters; checked already.
        lengths: Of each piece of a parameter.
        groups: Of which group each piece is.
        values: First values of all pieces.
    """

    def __init__(
        self,
        optimizer: str,
        options: Sequence[Options],
        lengths: Sequence[int],
        groups: Sequence[int],
        values: np.ndarray,
    ) -> None:
        self.values = np.array(values)
        self._spans = [slice(*span) for span in pairwise(accumulate(lengths, initial=0))]
        flat = torch.from_numpy(self.values)
        self._pieces = [flat[span].detach().requires_grad_() for span in self._spans]
        params: list[list[Tensor]] = [[] for _ in options]
        for piece, group in zip(self._pieces, groups, strict=True):
            params[group].append(piece)
        made = [{"params": own, **each} for own, each in zip(params, options, strict=True)]
        self._optimizer: torch.optim.Optimizer = getattr(torch.optim, optimizer)(made)

    @property
    def num_pieces(self) -> int:
        """How many parameters have something here."""
        return len(self._pieces)

    def set_values(self, values: np.ndarray) -> None:
        """Take other values: somebody changed the parameters by hand."""
        self.values[:] = values

    def set_options(self, options: Sequence[Options]) -> None:
        """Take other options, as schedulers change them."""
        for group, each in zip(self._optimizer.param_groups, options, strict=True):
            group.update(each)

    def step(self, total: np.ndarray, present: np.ndarray) -> None:
        """Change the values by the gradients of all trainers together.

        Args:
            total: Their sum.
            present: Which pieces have a gradient; others stay as they are.
        """
        summed = torch.from_numpy(total)
        for piece, span, has in zip(self._pieces, self._spans, present, strict=True):
            piece.grad = summed[span] if has else None
        self._optimizer.step()

    def state_names(self) -> list[str]:
        """What the optimizer keeps."""
        return sorted({name for kept in self._optimizer.state.values() for name in kept})

    def state(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """What the optimizer keeps under a name.

        Returns:
            For all numbers, or one per piece (see `SCALARS`); and which pieces have any.
        """
        found = [self._optimizer.state.get(piece, {}).get(name) for piece in self._pieces]
        has = np.array([value is not None for value in found], dtype=bool)
        if name in SCALARS:
            values = [0.0 if value is None else float(value) for value in found]
            return np.array(values, np.float64), has
        flat = np.zeros_like(self.values)
        for value, span in zip(found, self._spans, strict=True):
            if value is not None:
                flat[span] = value.numpy()
        return flat, has

    def forget(self) -> None:
        """Keep nothing any more."""
        self._optimizer.state.clear()

    def load(self, name: str, values: np.ndarray, has: np.ndarray) -> None:
        """Let the optimizer keep something, as `state` gave it.

        Raises:
            SpecError: It has another shape or type.
        """
        is_scalar, per_piece = name in SCALARS, (self.num_pieces,)
        wanted = (
            (per_piece, np.dtype(float)) if is_scalar else (self.values.shape, self.values.dtype)
        )
        if (values.shape, values.dtype, has.shape, has.dtype) != (
            *wanted,
            per_piece,
            np.dtype(bool),
        ):
            raise SpecError(f"{name[:40]!r} is {values.dtype} {values.shape}", f"send {wanted}")
        # As torch has its counts, whatever the parameters are.
        kind = torch.get_default_dtype()
        for number, (piece, span) in enumerate(zip(self._pieces, self._spans, strict=True)):
            if has[number]:
                value = (
                    torch.tensor(values[number], dtype=kind)
                    if is_scalar
                    else torch.from_numpy(values[span].copy())
                )
                kept: dict[str, Tensor] = self._optimizer.state[piece]
                kept[name] = value
