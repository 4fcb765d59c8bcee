"""Interfaces of the callbacks and the display of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
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


class RunCallback:
    """Receives events of a run; the default ignores them. Methods must not block."""

    def began(self, plan: Plan, slots: Sequence[TaskPlacement]) -> None:
        """An attempt starts with these placements."""

    def log(self, line: str) -> None:
        """There is a line for the user."""

    def placed(self, registrations: Mapping[str, Mapping[str, Any]]) -> None:
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

    def reported(self, figures: Mapping[str, Any]) -> None:
        """The script reported figures."""

    def updated(self, status: Status) -> None:
        """The status was updated; about once a second."""

    def collected(self, checkpoint: Checkpoint) -> None:
        """A complete checkpoint was fetched."""

    def decided(self, state: Recovery, decision: Decision) -> None:
        """The recovery policy made a decision."""

    def kept(self, name: str, pieces: Iterator[bytes]) -> None:
        """An output file of the script is available; one callback may read its pieces.

        Raises `OSError` if the disk is full.
        """

    def finished(self, status: Status) -> None:
        """The run has ended."""


class CallbackList(RunCallback):
    """Forwards every event to several callbacks, in order."""

    def __init__(self, callbacks: Sequence[RunCallback]) -> None:
        for name in vars(RunCallback):
            if not name.startswith("_"):
                methods = [getattr(callback, name) for callback in callbacks]
                setattr(self, name, partial(_call_all, methods))


def _call_all(methods: Sequence[Callable[..., None]], *arguments: Any) -> None:
    for method in methods:
        method(*arguments)


class RunWatcher(Protocol):
    """Displays a run, on a cluster or local.

    A protocol, so that the command line starts without importing the runtime.
    """

    def log(self, line: str) -> None:
        """Show a line of the run itself."""
        ...

    def show(self, line: str) -> None:
        """Show a line printed by the script."""
        ...

    def notify(self, message: Message) -> None:
        """Handle a message of the trainer; see `Progress.after`."""
        ...
