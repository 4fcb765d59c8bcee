"""What a sampler makes of its share of a batch, and how it lies in one piece of memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from headrace.graph.sampling.store_pool import Of
from headrace.graph.schema import EdgeType

Kind = Literal["node", "seed", "edge", "ends", "tree"]

# A cache line: no two arrays share one, and every type is aligned.
_ALIGN = 64


class Key(NamedTuple):
    """Names an array of a batch.

    Attributes:
        of: Node type or edge type it belongs to.
        name: What PyG calls it.
        kind: `node`, `seed` and `edge` have a row per such thing; `ends` is an edge index; `tree`
            has the number of each node's seed.
        dtype: As torch calls it; arrays of `bfloat16` hold its bits.
    """

    of: Of
    name: str
    kind: Kind
    dtype: str


class Placed(NamedTuple):
    """An array in a piece of memory."""

    key: Key
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class SubBatch:
    """One sampler's share of a batch; nodes and edges in the order in which they were met.

    Attributes:
        epoch: From 0.
        batch: Within the epoch, from 0.
        num_sampled_nodes: Seeds, then new nodes per hop, by node type.
        num_sampled_edges: Per hop, by edge type.
        arrays: Views of memory that is given back when the last of them is gone.
        figures: What was measured while it was made: seconds and bytes by name.
    """

    epoch: int
    batch: int
    num_sampled_nodes: Mapping[str, list[int]]
    num_sampled_edges: Mapping[EdgeType, list[int]]
    arrays: Mapping[Key, np.ndarray] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)


def place(shapes: Mapping[Key, tuple[int, ...]]) -> tuple[list[Placed], int]:
    """Say where each array goes, and how many bytes all take."""
    placed, end = [], 0
    for key, shape in shapes.items():
        placed.append(Placed(key, shape, end))
        num_bytes = math.prod(shape) * stored_dtype(key.dtype).itemsize
        end += num_bytes + -num_bytes % _ALIGN
    return placed, end


def arrays_in(memory: np.ndarray, placed: Sequence[Placed]) -> dict[Key, np.ndarray]:
    """Views of the arrays in a piece of memory (`uint8`)."""
    arrays = {}
    for key, shape, offset in placed:
        dtype = stored_dtype(key.dtype)
        num_bytes = math.prod(shape) * dtype.itemsize
        arrays[key] = memory[offset : offset + num_bytes].view(dtype).reshape(shape)
    return arrays


def stored_dtype(name: str) -> np.dtype:
    """The numpy type in which values of a torch type are kept."""
    return np.dtype(np.uint16 if name == "bfloat16" else name)


def to_fields(part: SubBatch, placed: Sequence[Placed]) -> dict[str, Any]:
    """All but the arrays, as JSON can say it."""
    return {
        "epoch": part.epoch,
        "batch": part.batch,
        "nodes": [[name, list(map(int, n))] for name, n in part.num_sampled_nodes.items()],
        "edges": [[list(e), list(map(int, n))] for e, n in part.num_sampled_edges.items()],
        "placed": [
            [_plain(key.of), key.name, key.kind, key.dtype, list(map(int, shape)), offset]
            for key, shape, offset in placed
        ],
        "figures": {name: float(value) for name, value in part.figures.items()},
    }


def from_fields(fields: Mapping[str, Any], memory: np.ndarray) -> SubBatch:
    """What `to_fields` wrote, with arrays in memory."""
    placed = [
        Placed(Key(_typed(of), name, kind, dtype), tuple(shape), offset)
        for of, name, kind, dtype, shape, offset in fields["placed"]
    ]
    return SubBatch(
        fields["epoch"],
        fields["batch"],
        dict(fields["nodes"]),
        {(e[0], e[1], e[2]): counts for e, counts in fields["edges"]},
        arrays_in(memory, placed),
        fields["figures"],
    )


def _plain(of: Of) -> str | list[str]:
    return of if isinstance(of, str) else list(of)


def _typed(of: Any) -> Of:
    return of if isinstance(of, str) else (of[0], of[1], of[2])
