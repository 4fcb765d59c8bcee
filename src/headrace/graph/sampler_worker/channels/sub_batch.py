"""Sub-batches and their memory layout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from headrace.graph.format.encoding import Encoding
from headrace.graph.schema import EdgeType, TypeName

Kind = Literal["node", "seed", "edge", "ends", "tree"]

# A cache line: no two arrays share one, and every dtype is aligned.
_ALIGN = 64


class Key(NamedTuple):
    """Key of an array of a batch.

    Attributes:
        of: Node type or edge type.
        name: Attribute name in PyG.
        kind: `node`, `seed` and `edge` have a row per node, seed or edge; `ends` is an edge index;
            `tree` is the number of each node's seed.
        dtype: Name of the torch dtype; arrays of `bfloat16` hold its bits.
    """

    of: TypeName
    name: str
    kind: Kind
    dtype: str


class Placed(NamedTuple):
    """Location of an array in a block of memory."""

    key: Key
    shape: tuple[int, ...]
    offset: int


class EncodedArray(NamedTuple):
    """Rows that travel encoded to another machine.

    Attributes:
        key: Key of the decoded array.
        shape: Shape of the decoded array.
        encoding: How the rows are encoded.
        rows: Encoded rows: an array row each, or all units of sparse rows.
    """

    key: Key
    shape: tuple[int, ...]
    encoding: Encoding
    rows: np.ndarray

    def decode(self) -> np.ndarray:
        """Decode all rows; raise `DamagedGraphError` if they are not encoded like this."""
        # Not at import: kernels take a second to load.
        from headrace.graph.format.row_codec import codec

        out = np.empty(self.shape, stored_dtype(self.key.dtype))
        every = np.arange(len(out))
        found = codec(self.encoding, self.key.dtype, self.shape[1:], self.key.name)
        assert found is not None
        found.decode(self.rows, every, every, out)
        return out


@dataclass(frozen=True)
class SubBatch:
    """One sampler's sub-batch; nodes and edges are in sampling order.

    Attributes:
        num_sampled_nodes: Seeds, then new nodes per hop, by node type.
        num_sampled_edges: Edges per hop, by edge type.
        arrays: Views of memory that is released with the last of them.
        figures: Metrics of its construction: seconds and bytes by name.
        encoded: Arrays that are decoded where they are received.
    """

    epoch: int
    batch: int
    num_sampled_nodes: Mapping[str, list[int]]
    num_sampled_edges: Mapping[EdgeType, list[int]]
    arrays: Mapping[Key, np.ndarray] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    encoded: Sequence[EncodedArray] = ()


def place(shapes: Mapping[Key, tuple[int, ...]]) -> tuple[list[Placed], int]:
    """Offsets of all arrays, and their total size in bytes."""
    placed, end = [], 0
    for key, shape in shapes.items():
        placed.append(Placed(key, shape, end))
        num_bytes = math.prod(shape) * stored_dtype(key.dtype).itemsize
        end += num_bytes + -num_bytes % _ALIGN
    return placed, end


def arrays_in(memory: np.ndarray, placed: Sequence[Placed]) -> dict[Key, np.ndarray]:
    """Views of the arrays in a block of memory (`uint8`)."""
    arrays = {}
    for key, shape, offset in placed:
        dtype = stored_dtype(key.dtype)
        num_bytes = math.prod(shape) * dtype.itemsize
        arrays[key] = memory[offset : offset + num_bytes].view(dtype).reshape(shape)
    return arrays


def stored_dtype(name: str) -> np.dtype:
    """Numpy dtype that stores values of a torch dtype."""
    return np.dtype(np.uint16 if name == "bfloat16" else name)


def to_fields(sub_batch: SubBatch, placed: Sequence[Placed]) -> dict[str, Any]:
    """Encode everything but the arrays for JSON."""
    return {
        "epoch": sub_batch.epoch,
        "batch": sub_batch.batch,
        "nodes": [[name, list(map(int, n))] for name, n in sub_batch.num_sampled_nodes.items()],
        "edges": [[list(e), list(map(int, n))] for e, n in sub_batch.num_sampled_edges.items()],
        "placed": [
            [*_key_fields(key), list(map(int, shape)), offset] for key, shape, offset in placed
        ],
        "encoded": [
            [*_key_fields(key), list(map(int, shape)), encoding.model_dump(mode="json")]
            for key, shape, encoding, _ in sub_batch.encoded
        ],
        "figures": {name: float(value) for name, value in sub_batch.figures.items()},
    }


def from_fields(
    fields: Mapping[str, Any], memory: np.ndarray, encoded: Sequence[np.ndarray] = ()
) -> SubBatch:
    """Decode the result of `to_fields`, with arrays in memory and arrays of encoded rows."""
    placed = [
        Placed(Key(_typed(of), name, kind, dtype), tuple(shape), offset)
        for of, name, kind, dtype, shape, offset in fields["placed"]
    ]
    arrays = arrays_in(memory, placed)
    for (of, name, kind, dtype, shape, encoding), rows in zip(
        fields["encoded"], encoded, strict=True
    ):
        key = Key(_typed(of), name, kind, dtype)
        known = Encoding.model_validate(encoding)
        arrays[key] = EncodedArray(key, tuple(shape), known, rows).decode()
    return SubBatch(
        fields["epoch"],
        fields["batch"],
        dict(fields["nodes"]),
        {(e[0], e[1], e[2]): counts for e, counts in fields["edges"]},
        arrays,
        fields["figures"],
    )


def _key_fields(key: Key) -> list[Any]:
    of = key.of if isinstance(key.of, str) else list(key.of)
    return [of, key.name, key.kind, key.dtype]


def _typed(of: Any) -> TypeName:
    return of if isinstance(of, str) else (of[0], of[1], of[2])
