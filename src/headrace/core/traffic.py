"""Settings that reduce the bytes between machines."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from headrace.core.errors import SpecError
from headrace.core.units import Bytes, Number, format_bytes
from headrace.core.values import Spec

TrafficName = Literal["exact", "safe", "least"]


class Traffic(Spec):
    """Settings that reduce the bytes between machines.

    Attributes:
        name: `exact` changes no batch; `safe` and `least` trade accuracy for bytes.
        features: Form in which the graph must store features, see `headrace partition --features`;
            None for any.
        far: Weight of neighbours in other partitions, for loaders that do not set it.
        cache_bytes: Memory of each sampler for rows of other machines, for loaders that do not set
            it.
        hit_rate: Predicted share of those rows that the cache has; None without a cache.
    """

    name: TrafficName = "exact"
    features: Literal["auto", "int8", "int4"] | None = None
    far: Annotated[Number, Field(gt=0, le=1)] = 1.0
    cache_bytes: Bytes = 0.0
    hit_rate: Annotated[Number, Field(ge=0, le=1)] | None = None

    def sentence(self) -> str:
        """E.g. `safe: int8 features, far=0.25, 12 MB cache per sampler (hit rate 43 %)`."""
        words = []
        if self.features is not None:
            words.append(f"{self.features} features")
        if self.far != 1.0:
            words.append(f"far={self.far:g}")
        if self.cache_bytes:
            rate = "" if self.hit_rate is None else f" (hit rate {self.hit_rate:.0%})"
            words.append(f"{format_bytes(self.cache_bytes)} cache per sampler{rate}")
        return f"{self.name}: {', '.join(words) or 'all rows, no cache'}"


PLAIN: Final = Traffic()
"""No cache, features as they are stored, all neighbours alike."""

_SETTINGS: Final[dict[str, Traffic]] = {
    "exact": PLAIN,
    "safe": Traffic(name="safe", features="int8", far=0.25),
    "least": Traffic(name="least", features="int4", far=0.125),
}

TRAFFIC_NAMES: Final = tuple(_SETTINGS)


def traffic_settings(name: str) -> Traffic:
    """Settings of a name, without a cache; raise `SpecError` if there is none of that name."""
    if name not in _SETTINGS:
        raise SpecError(
            f"there are no traffic settings {name!r}", f"use {', '.join(TRAFFIC_NAMES)}"
        )
    return _SETTINGS[name]
