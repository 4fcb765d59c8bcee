"""What a run waits for until its trainer has had a batch: imports and compiling take their time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.runtime.protocol.trainer_messages import ASKED

TELL_EVERY_S = 10.0
"""How long a run says nothing; whoever watches shall not wait 15 s for a word."""


class StartupWatch:
    """Says now and then what a run waits for, until the first batch has come.

    Args:
        now_s: When the script was started, by any clock.
    """

    def __init__(self, now_s: float) -> None:
        self._began_s = self._told_s = now_s
        self._asked = self._is_over = False

    def see(self, message: Mapping[str, Any]) -> None:
        """Take note of what the trainer sends."""
        self._asked = self._asked or message.get("kind") == ASKED["kind"]
        self._is_over = self._is_over or message.get("kind") in ("batches", "report")

    def look(self, now_s: float) -> str:
        """A line if it is time for one."""
        if self._is_over or now_s - self._told_s < TELL_EVERY_S:
            return ""
        self._told_s = now_s
        what = (
            "the first batch; the first run of all compiles the samplers"
            if self._asked
            else "the script to ask a headrace loader for a batch"
        )
        return f"no batch after {now_s - self._began_s:.0f} s: waits for {what}"


BUSY_SHARE = 0.1
"""Up to which share of waiting a trainer counts as busy; the target of `idle_share`."""

_STAGES = {"sample_s": "sampling", "fetch_s": "features", "here_s": "sampling in the trainer"}


@dataclass(frozen=True)
class Progress:
    """What is known of a run.

    Attributes:
        figures: What the script reported last.
        reports: All that it reported.
        batch: Batches of this epoch that the trainer took ...
        num_batches: ... and how many there are.
        samples_per_s: Seeds per second, of the newest epoch.
        idle_share: Share of that time in which the trainer waited for a batch.
        waits_for: The stage that takes longest, if the trainer waits; else `nothing`.
        cache_hit_rate: Share of rows of other machines that samplers had; none without a cache.
        has_asked: Whether the script asked one of headrace's loaders for batches.
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

    def after(self, message: Mapping[str, Any]) -> Progress:
        """What is known with one more message."""
        if message.get("kind") == ASKED["kind"]:
            return replace(self, has_asked=True)
        if message.get("kind") == "report":
            figures = message["figures"]
            return replace(self, figures=figures, reports=(*self.reports, figures))
        # A loader that does not shuffle is there to evaluate: it says nothing of the training.
        if message.get("kind") == "batches" and message["trains"]:
            elapsed_s = max(message["elapsed_s"], 1e-9)
            idle_share = min(message["waited_s"] / elapsed_s, 1.0)
            return replace(
                self,
                batch=message["batch"],
                num_batches=message["num_batches"],
                samples_per_s=message["num_samples"] / elapsed_s,
                idle_share=idle_share,
                waits_for=_slowest(message["stages"]) if idle_share > BUSY_SHARE else "nothing",
                cache_hit_rate=_hit_rate(message["stages"]),
            )
        return self

    @property
    def speed(self) -> str:
        """Speed and what the trainer waits for, as people read it; empty if not known."""
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
