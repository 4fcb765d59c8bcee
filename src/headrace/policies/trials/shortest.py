"""Shortest trial first, among those that fit beside the running ones."""

from __future__ import annotations

from headrace.policies.trials._base import Queue, Room, TrialLoad


def shortest(queue: Queue, room: Room) -> list[TrialLoad]:
    """Start trials by predicted time; one that does not fit now lets later ones pass.

    A large trial cannot starve: no trials arrive while a sweep runs, so the others end.
    """
    chosen: list[TrialLoad] = []
    for trial in sorted(queue.waiting, key=lambda trial: (trial.time_s, trial.number)):
        if room.has([*queue.running, *chosen, trial]):
            chosen.append(trial)
    return chosen
