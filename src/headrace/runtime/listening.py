"""Whoever else wants to know what happens in a run: metrics, trackers, logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.plan import Plan
from headrace.runtime.placing import Slot
from headrace.runtime.run_status import Status


class RunListener:
    """Is told what happens; does nothing with it. Whoever does must not take long."""

    def began(self, plan: Plan, slots: Sequence[Slot]) -> None:
        """Tasks got their machines: at the start, and whenever a run goes on elsewhere."""

    def said(self, line: str) -> None:
        """The user was told something."""

    def looked(self, task: str, state: Mapping[str, Any]) -> None:
        """A task's shell said how its process is."""

    def printed(self, task: str, data: bytes) -> None:
        """A task's process printed something."""

    def traced(self, task: str, data: bytes) -> None:
        """A task's process measured something."""

    def reported(self, figures: Mapping[str, Any]) -> None:
        """The script reported figures."""

    def noted(self, status: Status) -> None:
        """The run is like this now; about every second."""

    def finished(self, status: Status) -> None:
        """The run is over."""


class Listeners(RunListener):
    """Tells several."""

    def __init__(self, listeners: Sequence[RunListener]) -> None:
        self._listeners = tuple(listeners)

    def began(self, plan: Plan, slots: Sequence[Slot]) -> None:
        """Tasks got their machines."""
        for each in self._listeners:
            each.began(plan, slots)

    def said(self, line: str) -> None:
        """The user was told something."""
        for each in self._listeners:
            each.said(line)

    def looked(self, task: str, state: Mapping[str, Any]) -> None:
        """A task's shell said how its process is."""
        for each in self._listeners:
            each.looked(task, state)

    def printed(self, task: str, data: bytes) -> None:
        """A task's process printed something."""
        for each in self._listeners:
            each.printed(task, data)

    def traced(self, task: str, data: bytes) -> None:
        """A task's process measured something."""
        for each in self._listeners:
            each.traced(task, data)

    def reported(self, figures: Mapping[str, Any]) -> None:
        """The script reported figures."""
        for each in self._listeners:
            each.reported(figures)

    def noted(self, status: Status) -> None:
        """The run is like this now."""
        for each in self._listeners:
            each.noted(status)

    def finished(self, status: Status) -> None:
        """The run is over."""
        for each in self._listeners:
            each.finished(status)
