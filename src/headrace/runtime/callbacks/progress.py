"""Progress of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.runtime.protocol.trainer_messages import (
    BatchProgress,
    BatchRequested,
    Message,
    Report,
)

BUSY_SHARE = 0.1
"""Maximum `idle_share` of a trainer that counts as busy."""

_STAGES = {"sample_s": "sampling", "fetch_s": "features", "here_s": "sampling in the trainer"}


@dataclass(frozen=True)
class Progress:
    """Progress of a run.

    Attributes:
        figures: Latest figures reported by the script.
        reports: All reported figures.
        batch: Batches consumed in this epoch.
        num_batches: Batches per epoch.
        samples_per_s: Seeds per second in the latest epoch.
        idle_share: Share of time in which the trainer waits for batches.
        waits_for: The slowest stage if the trainer waits; else `nothing`.
        cache_hit_rate: Hit rate of the samplers' cache of remote rows; None without a cache.
        has_asked: Whether the script has requested a batch from a headrace loader.
    """

    figures: Mapping[str, Any] = field(default_factory=dict)
    reports: tuple[Mapping[str, Any], ...] = ()
    batch: int = 0
    num_batches: int = 0
    samples_per_s: float = 0.0
    idle_share: float = 0.0
    waits_for: str = "nothing"
    cache_hit_rate: float | None = None
    has_asked: bool = False

    def after(self, message: Message) -> Progress:
        """The progress updated with a message."""
        if isinstance(message, BatchRequested):
            return replace(self, has_asked=True)
        if isinstance(message, Report):
            figures = message.figures
            return replace(self, figures=figures, reports=(*self.reports, figures))
        # Loaders that do not shuffle evaluate; they are not training progress.
        if isinstance(message, BatchProgress) and message.trains:
            elapsed_s = max(message.elapsed_s, 1e-9)
            idle_share = min(message.waited_s / elapsed_s, 1.0)
            return replace(
                self,
                batch=message.batch,
                num_batches=message.num_batches,
                samples_per_s=message.num_samples / elapsed_s,
                idle_share=idle_share,
                waits_for=_slowest(message.stages) if idle_share > BUSY_SHARE else "nothing",
                cache_hit_rate=_hit_rate(message.stages),
            )
        return self

    @property
    def speed(self) -> str:
        """Speed and waiting share for display; empty if unknown."""
        if not self.num_batches:
            return ""
        waits = f", {self.waits_for}" if self.waits_for != "nothing" else ""
        rate = self.cache_hit_rate
        hits = "" if rate is None else f"  cache {rate:.0%}"
        return f"{self.samples_per_s:,.0f} samples/s  waits {self.idle_share:.0%}{waits}{hits}"


def _hit_rate(stages: Mapping[str, float]) -> float | None:
    hits, misses = stages.get("cache_hits", 0.0), stages.get("cache_misses", 0.0)
    return hits / (hits + misses) if hits + misses else None


def _slowest(stages: Mapping[str, float]) -> str:
    known = {name: seconds for name, seconds in stages.items() if name in _STAGES}
    return _STAGES[max(known, key=lambda name: known[name])] if known else "batches"
