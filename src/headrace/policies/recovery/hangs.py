"""Hung tasks: when a task without progress is killed, and recovered like one that was killed.

A process that a signal has stopped cannot progress, so it gets a short time. Any other process may
be slow for a good reason: it compiles, evaluates, or writes a checkpoint. So trainers only count as
hung inside their loops over training batches, after many times the longest pause so far, and if no
task of the run computes or waits for a disk.
"""

from __future__ import annotations

from collections.abc import Collection

STOPPED_S = 10.0
"""Time after which a stopped process is killed: as long as a network cut that is waited for."""

LEAST_S = 90.0
"""Least time without progress of a hung run: by then a lost store or machine has been noticed."""

PAUSES = 10.0
"""A run without progress for this many times its longest pause may hang."""

EXAMINE_S = 5.0
"""Time in which the CPU time of all tasks is measured."""

REPEAT_S = 30.0
"""Time between two measurements: a task that computes is given more time."""

_IDLE_SHARE = 0.02
# Threads that only wait for requests and send heartbeats take less than 0.5 % of a core.


def may_hang(still_s: float, longest_pause_s: float, in_loop: Collection[bool]) -> bool:
    """Whether to examine a run without progress for `still_s`.

    Args:
        still_s: Time without progress of any trainer.
        longest_pause_s: Longest such time that has ended, since the first iteration.
        in_loop: Whether each trainer is between two batches of a loop that trains.
    """
    deadline_s = max(LEAST_S, PAUSES * longest_pause_s)
    return still_s >= deadline_s and bool(in_loop) and all(in_loop)


def is_idle(cpu_s: float, passed_s: float, waits_for_disk: bool) -> bool:
    """Whether a task has done nothing while `passed_s` passed, in which it used `cpu_s`."""
    return not waits_for_disk and cpu_s < _IDLE_SHARE * passed_s
