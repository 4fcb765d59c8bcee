"""Connections between tasks, known from both ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

Address = tuple[str, int]
"""Host and port."""


@dataclass(frozen=True)
class End:
    """A connection as the task at one of its ends sees it."""

    task: str
    local: Address
    peer: Address

    @property
    def key(self) -> tuple[Address, Address]:
        """The same for one connection, whoever reports it."""
        return (self.local, self.peer) if self.local < self.peer else (self.peer, self.local)


@dataclass(frozen=True)
class Way:
    """One direction of a connection between tasks of two machines."""

    src: str
    dst: str
    sender: Address
    receiver: Address


class ConnectionMatcher:
    """Knows all ends that were reported, and joins those of one connection."""

    def __init__(self) -> None:
        self._ends: dict[str, dict[tuple[Address, Address], End]] = defaultdict(dict)

    def add(self, machine: str, ends: Iterable[End]) -> list[Way]:
        """Take new ends of a machine; both ways of every connection of which both are known now."""
        ways = []
        for end in ends:
            self._ends[machine][end.key] = end
            for other, known in self._ends.items():
                if other != machine and end.key in known:
                    ways += _ways(end, known[end.key])
        return ways

    def remove(self, machine: str, keys: Iterable[tuple[Address, Address]]) -> list[Way]:
        """Forget ends of a machine; the ways that are no more."""
        ways = []
        for key in keys:
            end = self._ends[machine].pop(key, None)
            for other, known in self._ends.items():
                if end is not None and other != machine and key in known:
                    ways += _ways(end, known[key])
        return ways

    def forget(self, machine: str) -> list[Way]:
        """Forget a machine."""
        return self.remove(machine, list(self._ends[machine]))


def _ways(one: End, other: End) -> list[Way]:
    there = Way(one.task, other.task, one.local, other.local)
    return [there, Way(other.task, one.task, other.local, one.local)]


def end_from(fields: list[object]) -> End:
    """An end as it was sent.

    Raises:
        ValueError: It is none.
    """
    match fields:
        case [str(task), str(host), int(port), str(peer_host), int(peer_port)]:
            return End(task, (host, port), (peer_host, peer_port))
    raise ValueError(f"{fields} is no end of a connection")


def end_to(end: End) -> list[object]:
    """An end as it is sent."""
    return [end.task, *end.local, *end.peer]
