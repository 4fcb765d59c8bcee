"""A server's shard of a model, and its optimizer.

Gradients are summed in the order of ranks, so that results are bitwise reproducible.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from headrace.core.errors import SpecError
from headrace.training.parameter_server.optimizer_specs import SCALARS
from headrace.training.parameter_server.trial import check_scalars, state_names, try_step
from headrace.training.parameter_server.types import Options


def sum_by_rank(gradients: Sequence[np.ndarray]) -> np.ndarray:
    """Sum of the trainers' gradients, in the order of ranks."""
    total = gradients[0].copy()
    for more in gradients[1:]:
        total += more
    return total


class OptimizerShard:
    """One shard of one model.

    Args:
        optimizer: Name of a torch optimizer.
        options: Options of each parameter group; already checked.
        lengths: Length of each piece of a parameter.
        groups: Parameter group of each piece.
        values: Initial values of all pieces.
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
        self._name, self._groups = optimizer, tuple(groups)
        self._optimizer: torch.optim.Optimizer = getattr(torch.optim, optimizer)(made)
        self._options = self._tried = list(options)
        self._is_loaded = False

    @property
    def num_pieces(self) -> int:
        """Number of parameters with elements in this shard."""
        return len(self._pieces)

    def set_values(self, values: np.ndarray) -> None:
        """Set the values, after the script has changed parameters."""
        self.values[:] = values

    def set_options(self, options: Sequence[Options]) -> None:
        """Set the options, which schedulers change."""
        for group, each in zip(self._optimizer.param_groups, options, strict=True):
            group.update(each)
        self._options = list(options)

    def check_next(self, options: Sequence[Options] | None) -> None:
        """Check that the next step works, with given options or the same as before.

        Raises:
            SpecError: Options are outside their domain, or state was loaded only in part.
        """
        chosen = self._options if options is None else list(options)
        if not self._is_loaded and all(map(_is_covered, chosen, self._tried)):
            return
        tried: dict[tuple[int, tuple[tuple[str, float], ...]], frozenset[str]] = {}
        for piece, group in zip(self._pieces, self._groups, strict=True):
            kept = self._optimizer.state.get(piece, {})
            scalars = tuple((name, float(kept[name])) for name in sorted(SCALARS & kept.keys()))
            key = (group, scalars)
            if key not in tried:
                tried[key] = try_step(self._name, chosen[group], piece.dtype, dict(scalars))
            missing = sorted(tried[key] - kept.keys()) if kept else []
            if missing:
                raise SpecError(
                    f"the state of {self._name} has no {', '.join(missing)}",
                    "load all of it, or clear it",
                )
        self._tried = chosen

    def step(self, total: np.ndarray, present: np.ndarray) -> None:
        """Make a step with the summed gradients; pieces not in `present` are not changed."""
        summed = torch.from_numpy(total)
        for piece, span, has in zip(self._pieces, self._spans, present, strict=True):
            piece.grad = summed[span] if has else None
        self._optimizer.step()
        self._is_loaded = False

    def state_names(self) -> list[str]:
        """Names of the optimizer state."""
        return sorted({name for kept in self._optimizer.state.values() for name in kept})

    def state(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Optimizer state of a name.

        Returns:
            Values of all elements, or one per piece (see `SCALARS`); and which pieces have any.
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
        """Clear the optimizer state."""
        self._optimizer.state.clear()

    def load(self, name: str, values: np.ndarray, has: np.ndarray) -> None:
        """Set the optimizer state of a name, in the format of `state`."""
        if name not in state_names(self._name):
            raise SpecError(f"{self._name} has no state {name[:40]!r}", "load its own state")
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
        check_scalars(self._name, name, values[has].tolist() if is_scalar else [])
        self._is_loaded = True
        # Torch keeps step counts in the default dtype, whatever the parameters have.
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


def _is_covered(options: Options, tried: Options) -> bool:
    """Whether options work because others do: schedulers lower the learning rate in every step."""
    return {**options, "lr": 0} == {**tried, "lr": 0} and 0 <= options["lr"] <= tried["lr"]
