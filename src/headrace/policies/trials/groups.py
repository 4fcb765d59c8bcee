"""The task groups of CoGNN (section IV-D): a group starts when the group before has ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.policies.trials._base import Queue, Room, TrialLoad


def base(queue: Queue, room: Room) -> list[TrialLoad]:
    """First in, first out."""
    return _next_group(queue, sorted(queue.waiting, key=lambda trial: trial.number), room)


def lmcf(queue: Queue, room: Room) -> list[TrialLoad]:
    """Lowest memory consumption first."""
    return _next_group(queue, _by_memory(queue), room)


def bmc(queue: Queue, room: Room) -> list[TrialLoad]:
    """Balanced memory consumption: the smallest and the largest trial in turns (Algorithm 1)."""
    return _next_group(queue, _from_both_ends(_by_memory(queue), queue.num_begun), room)


def _by_memory(queue: Queue) -> list[TrialLoad]:
    return sorted(queue.waiting, key=lambda trial: (trial.memory_bytes, trial.number))


def _from_both_ends(ascending: list[TrialLoad], num_popped: int) -> Iterator[TrialLoad]:
    """Pop from the left and from the right in turns, over all groups."""
    left, right = 0, len(ascending)
    while left < right:
        if (num_popped + left + len(ascending) - right) % 2:
            right -= 1
            yield ascending[right]
        else:
            yield ascending[left]
            left += 1


def _next_group(queue: Queue, ordered: Iterable[TrialLoad], room: Room) -> list[TrialLoad]:
    if queue.running:
        return []
    group: list[TrialLoad] = []
    for trial in ordered:
        if group and not room.has([*group, trial]):
            break
        group.append(trial)
    return group
