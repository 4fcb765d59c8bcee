"""Growth of a sub-batch with its seeds: neighbours of different seeds overlap."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from headrace.core.errors import SpecError
from headrace.core.units import Bytes, Number, Seconds
from headrace.core.values import Spec

Quantity = Literal["nodes", "edges", "store_bytes", "batch_bytes", "sampler_time", "trainer_time"]

_Positive = Annotated[Number, Field(gt=0)]

_NAMES: tuple[Quantity, ...] = (
    "nodes", "edges", "store_bytes", "batch_bytes", "sampler_time", "trainer_time",
)  # fmt: skip

_INSTEAD: dict[Quantity, Quantity] = {
    "store_bytes": "nodes",
    "batch_bytes": "nodes",
    "sampler_time": "edges",
    "trainer_time": "edges",
}
"""What an unknown quantity is proportional to."""


class Growth(Spec):
    """Means of one sub-batch at several numbers of seeds.

    Between and beyond the measured sizes a quantity is a parabola in the logarithms of seeds and
    quantity. Beyond them its exponent stays between 0 (no growth) and 1 (proportional). A quantity
    without values grows like `nodes` if it is in bytes, like `edges` if it is a time, and in
    proportion to seeds if those are not known either.

    Attributes:
        seeds: Seeds of a sub-batch, ascending.
        nodes: Sampled nodes, seeds included.
        edges: Sampled edges.
        store_bytes: Bytes from all stores.
        batch_bytes: Bytes from the sampler to its trainer.
        sampler_time: Seconds of a sampler.
        trainer_time: Seconds of a trainer per sub-batch.

    Example:
        >>> growth = Growth(seeds=[16, 64, 256], nodes=[1427, 4112, 8548])
        >>> growth.values_at("nodes", [32, 64, 512]).round().tolist()
        [2523.0, 4112.0, 10906.0]
    """

    seeds: tuple[_Positive, ...]
    nodes: tuple[_Positive, ...] = ()
    edges: tuple[_Positive, ...] = ()
    store_bytes: tuple[Annotated[Bytes, Field(gt=0)], ...] = ()
    batch_bytes: tuple[Annotated[Bytes, Field(gt=0)], ...] = ()
    sampler_time: tuple[Annotated[Seconds, Field(gt=0)], ...] = ()
    trainer_time: tuple[Annotated[Seconds, Field(gt=0)], ...] = ()

    @model_validator(mode="after")
    def _one_value_per_size(self) -> Self:
        if len(self.seeds) < 2 or any(one >= other for one, other in pairwise(self.seeds)):
            raise SpecError(
                "seeds must be at least two ascending sizes", "write [32, 64, 128]", at=("seeds",)
            )
        for name in _NAMES:
            if getattr(self, name) and len(getattr(self, name)) != len(self.seeds):
                raise SpecError(
                    f"{name} has {len(getattr(self, name))} values for {len(self.seeds)} sizes",
                    "give one value per size, or none",
                    at=(name,),
                )
        return self

    @model_serializer(mode="wrap")
    def _omit_unknown(self, write: SerializerFunctionWrapHandler) -> Any:
        return {name: values for name, values in write(self).items() if values}

    @cached_property
    def _polynomials(self) -> dict[Quantity, tuple[float, ...]]:
        """Coefficients by quantity in logarithms, highest power first; no arrays, for equality."""
        x, found = np.log(self.seeds), {}
        for name in _NAMES:
            if values := getattr(self, name):
                fitted = np.polyfit(x, np.log(values), min(2, len(x) - 1))
                found[name] = tuple(fitted.tolist())
        return found

    def values_at(self, quantity: Quantity, seeds: Any) -> np.ndarray:
        """Quantity at other numbers of seeds; 0 without seeds."""
        name: Quantity | None = quantity
        while name is not None and name not in self._polynomials:
            name = _INSTEAD.get(name)
        given = np.asarray(seeds, dtype=np.float64)
        if name is None:
            return given
        x = np.log(np.maximum(given, 1e-300))
        first, last = np.log(self.seeds[0]), np.log(self.seeds[-1])
        fit = self._polynomials[name]
        inside = np.polyval(fit, np.clip(x, first, last))
        beyond = _rise(fit, last, np.maximum(x, last)) - _rise(fit, first, np.minimum(x, first))
        values: np.ndarray = np.where(given > 0, np.exp(inside + beyond), 0.0)
        return values

    def equivalent_seeds(self, quantity: Quantity, seeds: Any, nominal: float) -> np.ndarray:
        """Seeds that would give the same quantity if it were proportional to that at `nominal`."""
        at_nominal = float(self.values_at(quantity, nominal))
        found: np.ndarray = self.values_at(quantity, seeds) * (nominal / at_nominal)
        return found


def _rise(fit: tuple[float, ...], start: float, end: np.ndarray) -> np.ndarray:
    """Absolute change of a polynomial from `start` to `end`, with its slope clipped to [0, 1]."""
    slope = np.polyder(fit)
    distance = np.abs(end - start)
    at_start = float(np.polyval(slope, start))
    change = (np.polyval(slope, end) - at_start) / np.where(distance > 0, distance, 1.0)
    # The slope is linear in the distance: integrate its clipped values piece by piece.
    low, high = (
        np.where(change != 0, (limit - at_start) / np.where(change != 0, change, 1.0), -1.0)
        for limit in (0.0, 1.0)
    )
    cuts = np.sort(np.clip(np.stack([np.zeros_like(low), low, high, distance]), 0.0, distance), 0)
    middles = (cuts[1:] + cuts[:-1]) / 2
    slopes = np.clip(at_start + change * middles, 0.0, 1.0)
    total: np.ndarray = (slopes * np.diff(cuts, axis=0)).sum(axis=0)
    return total
