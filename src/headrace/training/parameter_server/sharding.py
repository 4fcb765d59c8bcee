"""Which server has which part of the parameters: the flat vector of all of them, cut evenly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True)
class Piece:
    """What a server has of one parameter.

    Attributes:
        parameter: Which one.
        begin: First of its numbers ...
        length: ... and how many, at least one.
    """

    parameter: int
    begin: int
    length: int


@dataclass(frozen=True)
class ShardLayout:
    """Parameters one after the other, cut into one shard per server.

    Shards differ by at most one number, whatever the parameters are: a parameter may be cut
    anywhere, as optimizers here treat each number by itself.

    Attributes:
        sizes: How many numbers each parameter has.
        num_servers: How many shards there are.
    """

    sizes: tuple[int, ...]
    num_servers: int

    @classmethod
    def of(cls, sizes: Sequence[int], num_servers: int) -> ShardLayout:
        """A layout of parameters with so many numbers each."""
        return cls(tuple(sizes), num_servers)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each parameter begins in the flat vector."""
        return tuple(accumulate(self.sizes, initial=0))[:-1]

    @property
    def num_elements(self) -> int:
        """How many numbers there are."""
        return sum(self.sizes)

    def bounds(self, server: int) -> tuple[int, int]:
        """First number of a server's shard, and the first one behind it."""
        total = self.num_elements
        return server * total // self.num_servers, (server + 1) * total // self.num_servers

    def pieces(self, server: int) -> tuple[Piece, ...]:
        """What a shard consists of, in order."""
        begin, end = self.bounds(server)
        found = []
        for parameter, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            first, last = max(begin, start), min(end, start + size)
            if first < last:
                found.append(Piece(parameter, first - start, last - first))
        return tuple(found)
