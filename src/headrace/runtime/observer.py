"""Whoever is told what happens in an attempt to run a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.policies.lifecycle.events import Event
from headrace.policies.lifecycle.state import Lifecycle
from headrace.policies.recovery.deciding import Recovery
from headrace.policies.recovery.events import Decision
from headrace.runtime.clocks import ClockOffset
from headrace.training.checkpoints import Checkpoint


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
