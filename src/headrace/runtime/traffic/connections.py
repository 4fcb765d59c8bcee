"""Matches the two ends of connections between tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.runtime.traffic.messages import EndFields

Address = tuple[str, int]
"""Host and port."""


@dataclass(frozen=True)
class End:
    """A connection, as seen by the task at one end."""

    task: str
    local: Address
    peer: Address

    @property
    def key(self) -> tuple[Address, Address]:
        """The same key at both ends of a connection."""
        return (self.local, self.peer) if self.local < self.peer else (self.peer, self.local)


@dataclass(frozen=True)
class Way:
    """One direction of a connection between tasks on two machines."""

    src: str
    dst: str
    sender: Address
    receiver: Address


class ConnectionMatcher:
    """Stores all reported ends and matches those of the same connection."""

    def __init__(self) -> None:
        self._ends: dict[str, dict[tuple[Address, Address], End]] = defaultdict(dict)

    def add(self, machine: str, ends: Iterable[End]) -> list[Way]:
        """Add ends of a machine; return both directions of newly matched connections."""
        ways = []
        for end in ends:
            self._ends[machine][end.key] = end
            for other, known in self._ends.items():
                if other != machine and end.key in known:
                    ways += _ways(end, known[end.key])
        return ways

    def remove(self, machine: str, keys: Iterable[tuple[Address, Address]]) -> list[Way]:
        """Remove ends of a machine; return the directions that are closed."""
        ways = []
        for key in keys:
            end = self._ends[machine].pop(key, None)
            for other, known in self._ends.items():
                if end is not None and other != machine and key in known:
                    ways += _ways(end, known[key])
        return ways

    def forget(self, machine: str) -> list[Way]:
        """Remove all ends of a machine; return the directions that are closed."""
        return self.remove(machine, list(self._ends[machine]))


def _ways(one: End, other: End) -> list[Way]:
    there = Way(one.task, other.task, one.local, other.local)
    return [there, Way(other.task, one.task, other.local, one.local)]


def end_from(fields: EndFields) -> End:
    """Decode an end from a message."""
    task, host, port, peer_host, peer_port = fields
    return End(task, (host, port), (peer_host, peer_port))


def end_to(end: End) -> EndFields:
    """Encode an end for a message."""
    return (end.task, *end.local, *end.peer)
