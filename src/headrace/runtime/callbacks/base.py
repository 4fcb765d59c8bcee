"""Interfaces of the observers, listeners and watchers of a run."""

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
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.protocol.trainer_messages import Message
from headrace.runtime.run_dir.status import Status
from headrace.training.checkpoint_files import Checkpoint


class Observer:
    """Receives the controller's events; the default ignores them."""

    def say(self, line: str) -> None:
        """Show a line to the user."""

    def placed(self, hellos: Mapping[str, Mapping[str, Any]]) -> None:
        """All task actors have registered."""

    def changed(self, state: Lifecycle, event: Event) -> None:
        """The lifecycle state changed."""

    def polled(self, task: str, state: ActorState) -> None:
        """A task's actor reported its state."""

    def synchronised(self, offsets: Mapping[str, ClockOffset]) -> None:
        """Clock offsets of the machines were measured."""

    def printed(self, task: str, data: bytes) -> None:
        """A task's process printed output."""

    def traced(self, task: str, data: bytes) -> None:
        """A task's process wrote trace records."""

    def collected(self, checkpoint: Checkpoint) -> None:
        """A complete checkpoint was fetched."""

    def decided(self, state: Recovery, decision: Decision) -> None:
        """The recovery policy made a decision."""

    def kept(self, name: str, pieces: Iterator[bytes]) -> None:
        """An output file of the script is available."""


class RunListener:
    """Receives events of a run; the default ignores them. Methods must not block."""

    def began(self, plan: Plan, slots: Sequence[TaskPlacement]) -> None:
        """An attempt starts with these placements."""

    def logged(self, line: str) -> None:
        """A line was shown to the user."""

    def polled(self, task: str, state: ActorState) -> None:
        """A task's actor reported its state."""

    def printed(self, task: str, data: bytes) -> None:
        """A task's process printed output."""

    def traced(self, task: str, data: bytes) -> None:
        """A task's process wrote trace records."""

    def reported(self, figures: Mapping[str, Any]) -> None:
        """The script reported figures."""

    def updated(self, status: Status) -> None:
        """The status was updated; about once a second."""

    def finished(self, status: Status) -> None:
        """The run has ended."""


class Listeners(RunListener):
    """Forwards events to several listeners."""

    def __init__(self, listeners: Sequence[RunListener]) -> None:
        self._listeners = tuple(listeners)

    def began(self, plan: Plan, slots: Sequence[TaskPlacement]) -> None:
        """Forward to all listeners."""
        for each in self._listeners:
            each.began(plan, slots)

    def logged(self, line: str) -> None:
        """A line was shown to the user."""
        for each in self._listeners:
            each.logged(line)

    def polled(self, task: str, state: ActorState) -> None:
        """A task's actor reported its state."""
        for each in self._listeners:
            each.polled(task, state)

    def printed(self, task: str, data: bytes) -> None:
        """A task's process printed output."""
        for each in self._listeners:
            each.printed(task, data)

    def traced(self, task: str, data: bytes) -> None:
        """A task's process wrote trace records."""
        for each in self._listeners:
            each.traced(task, data)

    def reported(self, figures: Mapping[str, Any]) -> None:
        """The script reported figures."""
        for each in self._listeners:
            each.reported(figures)

    def updated(self, status: Status) -> None:
        """Forward to all listeners."""
        for each in self._listeners:
            each.updated(status)

    def finished(self, status: Status) -> None:
        """The run has ended."""
        for each in self._listeners:
            each.finished(status)


class RunWatcher(Protocol):
    """Displays a run.

    Attributes:
        output: File descriptor for the script's output; None to pass its lines to `show`.
    """

    output: int | None

    def say(self, line: str) -> None:
        """Show a line of the run itself."""
        ...

    def show(self, line: str) -> None:
        """Show a line printed by the script."""
        ...

    def tell(self, message: Message) -> None:
        """Handle a message of the trainer; see `Progress.after`."""
        ...
