"""Assign parameters to servers: the flat vector of all parameters, split evenly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True)
class Piece:
    """The elements of one parameter in a shard: index of the parameter, first element, length."""

    parameter: int
    begin: int
    length: int


@dataclass(frozen=True)
class ShardLayout:
    """The concatenated parameters, split into one shard per server.

    Shard sizes differ by at most one element: a parameter may be split anywhere, since the
    optimizers are elementwise.

    Attributes:
        sizes: Number of elements of each parameter.
        num_servers: Number of shards.
    """

    sizes: tuple[int, ...]
    num_servers: int

    @classmethod
    def of(cls, sizes: Sequence[int], num_servers: int) -> ShardLayout:
        """Layout of parameters of the given sizes."""
        return cls(tuple(sizes), num_servers)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Start of each parameter in the flat vector."""
        return tuple(accumulate(self.sizes, initial=0))[:-1]

    @property
    def num_elements(self) -> int:
        """Number of elements of all parameters."""
        return sum(self.sizes)

    def bounds(self, server: int) -> tuple[int, int]:
        """Begin and end of a server's shard in the flat vector."""
        total = self.num_elements
        return server * total // self.num_servers, (server + 1) * total // self.num_servers

    def pieces(self, server: int) -> tuple[Piece, ...]:
        """Pieces of a shard, in order."""
        begin, end = self.bounds(server)
        found = []
        for parameter, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            first, last = max(begin, start), min(end, start + size)
            if first < last:
                found.append(Piece(parameter, first - start, last - first))
        return tuple(found)
