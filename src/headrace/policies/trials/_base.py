"""The interface of orders of trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class TrialLoad:
    """What a trial needs while it runs.

    Attributes:
        number: Its number in the sweep; trials arrive in this order.
        memory_bytes: Estimated peak memory of all its tasks; 0 if it is not known.
        time_s: Predicted time if it runs alone; only the order of these times counts.
        nic_share: Share of the busiest NIC that it uses.
    """

    number: int
    memory_bytes: float = 0.0
    time_s: float = 0.0
    nic_share: float = 0.0


@dataclass(frozen=True)
class Room:
    """What trials that run side by side share.

    Attributes:
        num_trials: How many may run.
        memory_bytes: Their memory.
        nic_share: Sum of their shares of the busiest NIC.
    """

    num_trials: int
    memory_bytes: float = float("inf")
    nic_share: float = 1.0

    def has(self, trials: Sequence[TrialLoad]) -> bool:
        """Whether trials may run side by side; a single one needs only the memory."""
        return (
            len(trials) <= self.num_trials
            and sum(trial.memory_bytes for trial in trials) <= self.memory_bytes
            and (len(trials) <= 1 or sum(t.nic_share for t in trials) <= self.nic_share + 1e-9)
        )


@dataclass(frozen=True)
class Queue:
    """State of a sweep.

    Attributes:
        waiting: Trials that have not started, by number.
        running: Trials that run.
        num_begun: How many have started, with those that have ended.
    """

    waiting: Sequence[TrialLoad]
    running: Sequence[TrialLoad] = ()
    num_begun: int = 0


class TrialOrder(Protocol):
    """Decides which trials start now.

    The decision depends on nothing but its arguments. Trials that start fit beside those that run,
    and if nothing runs and some trial waits, at least one starts.
    """

    def __call__(self, queue: Queue, room: Room) -> list[TrialLoad]:
        """Trials to start, in this order."""
        ...


def fits_alone(trial: TrialLoad, room: Room) -> bool:
    """Whether a trial can run at all."""
    return room.has([trial])
