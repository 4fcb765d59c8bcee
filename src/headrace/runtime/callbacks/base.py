"""Whoever is told what happens in an attempt to run a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from headrace.core.plan import Plan
from headrace.core.trace import ClockOffset
from headrace.policies.lifecycle.events import Event
from headrace.policies.lifecycle.state import Lifecycle
from headrace.policies.recovery.deciding import Recovery
from headrace.policies.recovery.events import Decision
from headrace.runtime.cluster.placement_group import TaskPlacement
from headrace.runtime.run_dir.status import Status
from headrace.training.checkpoint_files import Checkpoint


class Observer:
    """Is told what happens; does nothing with it."""

    def say(self, line: str) -> None:
        """Something happened that the user should know."""

    def placed(self, hellos: Mapping[str, Mapping[str, Any]]) -> None:
        """Every shell has said where it is."""

    def changed(self, state: Lifecycle, event: Event) -> None:
        """The lifecycle took an event."""

    def looked(self, task: str, state: Mapping[str, Any]) -> None:
        """A task's shell said how its process is."""

    def synchronised(self, offsets: Mapping[str, ClockOffset]) -> None:
        """Clocks of machines were compared with the driver's."""

    def printed(self, task: str, data: bytes) -> None:
        """A task's process printed something."""

    def traced(self, task: str, data: bytes) -> None:
        """A task's process measured something."""

    def collected(self, checkpoint: Checkpoint) -> None:
        """A checkpoint has arrived, whole."""

    def decided(self, state: Recovery, decision: Decision) -> None:
        """Something is done about a fault."""

    def kept(self, name: str, pieces: Iterator[bytes]) -> None:
        """The script has left a file."""


class RunListener:
    """Is told what happens; does nothing with it. Whoever does must not take long."""

    def began(self, plan: Plan, slots: Sequence[TaskPlacement]) -> None:
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

    def began(self, plan: Plan, slots: Sequence[TaskPlacement]) -> None:
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


class RunWatcher(Protocol):
    """Whoever shows a run.

    Attributes:
        output: File descriptor for what the script prints; none for a pipe, whose lines `show`
            gets.
    """

    output: int | None

    def say(self, line: str) -> None:
        """Something began."""
        ...

    def show(self, line: str) -> None:
        """The script printed a line."""
        ...

    def tell(self, message: Mapping[str, Any]) -> None:
        """The trainer has sent figures; see `Progress.after`."""
        ...
