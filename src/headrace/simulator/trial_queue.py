"""A sweep in virtual time: trials that share a machine's cores under an order of trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.policies.trials import Queue, Room, TrialLoad, TrialOrder

_ROUNDING = 1e-9


@dataclass(frozen=True)
class QueueOutcome:
    """What became of the trials.

    Attributes:
        begin_s: When each started, by number.
        end_s: When each ended, by number.
    """

    begin_s: Mapping[int, float]
    end_s: Mapping[int, float]

    @property
    def makespan_s(self) -> float:
        """When the last trial ended."""
        return max(self.end_s.values(), default=0.0)

    @property
    def mean_completion_s(self) -> float:
        """Mean time from the sweep's start to a trial's end."""
        return sum(self.end_s.values()) / max(1, len(self.end_s))

    @property
    def mean_queueing_s(self) -> float:
        """Mean time from the sweep's start to a trial's start."""
        return sum(self.begin_s.values()) / max(1, len(self.begin_s))


def simulate_queue(
    trials: Sequence[TrialLoad],
    order: TrialOrder,
    room: Room,
    cores: Mapping[int, float] | None = None,
    num_cores: float = float("inf"),
) -> QueueOutcome:
    """Run trials to their end; all of them are there at the start.

    Trials that need more cores than there are share them equally per core asked for, so that all
    of them slow down by the same factor; the same holds for the busiest NIC.

    Args:
        trials: The trials, with their times alone.
        order: Which start next.
        room: What trials share.
        cores: Cores that a trial uses alone, by number; 1 if not given.
        num_cores: Cores of the machine.
    """
    uses = cores or {}
    waiting = {trial.number: trial for trial in trials}
    left_s: dict[int, float] = {}
    running: dict[int, TrialLoad] = {}
    begin_s: dict[int, float] = {}
    end_s: dict[int, float] = {}
    now_s = 0.0
    while waiting or running:
        queue = Queue(tuple(waiting.values()), tuple(running.values()), len(begin_s))
        for trial in order(queue, room):
            running[trial.number] = waiting.pop(trial.number)
            left_s[trial.number] = trial.time_s
            begin_s[trial.number] = now_s
        wanted = sum(uses.get(number, 1.0) for number in running)
        nic = sum(trial.nic_share for trial in running.values())
        slowdown = max(1.0, wanted / num_cores, nic)
        step_s = min(left_s[number] for number in running)
        now_s += step_s * slowdown
        for number in list(running):
            left_s[number] -= step_s
            if left_s[number] <= _ROUNDING * max(1.0, running[number].time_s):
                del running[number]
                end_s[number] = now_s
    return QueueOutcome(begin_s, end_s)
