"""What a directory of parts contains: `manifest.json`, and where each array lies.

Folders are numbered by the order of types, not named after them: relations of knowledge graphs are
called `/people/person/nationality`, which no file system takes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, JsonValue, ValidationError, model_validator

from headrace.core.errors import SpecError
from headrace.core.values import CheckedFile, Value
from headrace.graph.schema import EdgeType

REMEDY = "copy or partition the graph again; `headrace graph verify` checks all of it"

FORMAT_VERSION = 1

MANIFEST = "manifest.json"

DTypeName = Literal[
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
]
"""What an array may be made of; numpy's names, little-endian."""

LABELS = "y"
"""Column of labels, as PyG calls it."""

SplitName = Literal["train", "val", "test"]

RESERVED = frozenset({"ids", "train", "val", "test", "clusters", "indptr", "indices", "halo"})
"""Files of the format itself, which no column may be called after."""

COLUMN_PATTERN = r"^[A-Za-z_][A-Za-z0-9_.\-]{0,99}$"

PARTITION_AGAIN = "partition the graph again"

CHUNK_BYTES = 1 << 24
"""What one checksum of a large file is of: a damaged one is named by the chunk."""

_Size = Annotated[int, Field(ge=0)]
_Checksum = Annotated[int, Field(ge=0, lt=2**32)]
_Offsets = Annotated[tuple[_Size, ...], Field(min_length=2)]


class FileInfo(Value):
    """One array in a file of its own: raw, little-endian, rows one after another.

    Attributes:
        dtype: What it is made of; `bfloat16` is the upper half of a `float32`.
        shape: As numpy counts it.
        bytes: Size of the file.
        crc32: Of all bytes, as zlib computes it.
        chunks: The same of every `CHUNK_BYTES`, for files of more; none in graphs of before 0.2.
    """

    dtype: DTypeName
    shape: tuple[_Size, ...]
    bytes: _Size
    crc32: _Checksum
    chunks: tuple[_Checksum, ...] = ()


class ColumnInfo(Value):
    """A value per node or per edge.

    Attributes:
        name: Also of the file in every part.
        dtype: As it is stored.
        shape: Of one row; empty for a number per row.
    """

    name: Annotated[str, Field(pattern=COLUMN_PATTERN)]
    dtype: DTypeName
    shape: tuple[_Size, ...] = ()


class NodeInfo(Value):
    """All nodes of one type.

    Attributes:
        name: The node type.
        offsets: Part `p` owns the new ids from `offsets[p]` to `offsets[p + 1]`.
        columns: Values per node.
        splits: How many nodes of each split every part owns.
        num_classes: One more than the largest label `y`; none without such labels, and in graphs of
            before 0.2.
    """

    name: str
    offsets: _Offsets
    columns: tuple[ColumnInfo, ...] = ()
    splits: Mapping[SplitName, tuple[_Size, ...]] = Field(default_factory=dict)
    num_classes: _Size | None = None

    @property
    def num_nodes(self) -> int:
        """Nodes of all parts."""
        return self.offsets[-1]


class EdgeInfo(Value):
    """All edges of one type; an edge belongs to the part that owns its destination.

    Attributes:
        src: Node type of the sources.
        relation: Name of the relation.
        dst: Node type of the destinations.
        offsets: Part `p` has `offsets[p + 1] - offsets[p]` of the edges.
        columns: Values per edge.
        has_ids: Whether original edge ids were kept.
    """

    src: str
    relation: str
    dst: str
    offsets: _Offsets
    columns: tuple[ColumnInfo, ...] = ()
    has_ids: bool = False

    @property
    def edge_type(self) -> EdgeType:
        """Source node type, relation, destination node type."""
        return self.src, self.relation, self.dst

    @property
    def num_edges(self) -> int:
        """Edges of all parts."""
        return self.offsets[-1]


class LinkInfo(Value):
    """Held-out links of one edge type.

    Attributes:
        split: `train`, `val` or `test`.
        edge: Position of the edge type.
        num_links: How many there are.
    """

    split: SplitName
    edge: _Size
    num_links: _Size


class Manifest(CheckedFile):
    """A graph in parts.

    Attributes:
        version: Version of the format.
        name: What the graph is called.
        num_parts: How many parts there are.
        method: Name of the partitioner.
        seed: Of all choices of the partitioner.
        shares: What part of the graph each part was meant to get.
        num_clusters: Second-level clusters in every part.
        nodes: Node types, in the order of their folders.
        edges: Edge types, in the order of their folders.
        links: Held-out links.
        quality: How good the cut is.
        note: What was made up, such as splits where the source had none.
        files: Every file but this one, by its path.
    """

    version: Literal[1] = 1
    name: str
    num_parts: Annotated[int, Field(ge=1)]
    method: str = ""
    seed: int = 0
    shares: tuple[Annotated[float, Field(ge=0)], ...]
    num_clusters: Annotated[int, Field(ge=1)] = 1
    nodes: Annotated[tuple[NodeInfo, ...], Field(min_length=1)]
    edges: tuple[EdgeInfo, ...]
    links: tuple[LinkInfo, ...] = ()
    quality: Mapping[str, JsonValue] = Field(default_factory=dict)
    note: str = ""
    files: Mapping[str, FileInfo] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        names = [node.name for node in self.nodes]
        for node in self.nodes:
            self._check_offsets(f"nodes of type {node.name!r}", node.offsets)
            check_column_names([column.name for column in node.columns])
            for split, counts in node.splits.items():
                if len(counts) != self.num_parts:
                    raise SpecError(f"{split} is not counted for every part", PARTITION_AGAIN)
        for edge in self.edges:
            self._check_offsets(f"edges of type {edge.edge_type}", edge.offsets)
            check_column_names([column.name for column in edge.columns])
            if not {edge.src, edge.dst} <= set(names):
                problem = f"edges go from {edge.src!r} to {edge.dst!r}, node types are {names}"
                raise SpecError(problem, PARTITION_AGAIN)
        if len(self.shares) != self.num_parts:
            problem = f"there are {self.num_parts} parts and {len(self.shares)} shares"
            raise SpecError(problem, PARTITION_AGAIN)
        if any(link.edge >= len(self.edges) for link in self.links):
            raise SpecError("links are of an edge type that is not there", PARTITION_AGAIN)
        return self

    def _check_offsets(self, what: str, offsets: tuple[int, ...]) -> None:
        rises = all(low <= high for low, high in pairwise(offsets))
        if len(offsets) != self.num_parts + 1 or offsets[0] != 0 or not rises:
            problem = f"offsets of {what} do not rise from 0 over {self.num_parts} parts"
            raise SpecError(problem, PARTITION_AGAIN)

    def node_index(self, name: str) -> int:
        """Position of a node type.

        Raises:
            SpecError: There is none of this name.
        """
        for t, node in enumerate(self.nodes):
            if node.name == name:
                return t
        known = ", ".join(node.name for node in self.nodes)
        raise SpecError(f"the graph has no nodes of type {name!r}", f"use one of {known}")

    def edge_index(self, edge_type: EdgeType) -> int:
        """Position of an edge type.

        Raises:
            SpecError: There is none of this name.
        """
        for e, edge in enumerate(self.edges):
            if edge.edge_type == tuple(edge_type):
                return e
        known = ", ".join(" ".join(edge.edge_type) for edge in self.edges[:8])
        raise SpecError(f"the graph has no edges of type {edge_type!r}", f"use one of {known}")


def ids_path(t: int) -> str:
    """New ids of all nodes of a type, by original id."""
    return f"ids/node-{t}.bin"


def node_path(part: int, t: int, name: str) -> str:
    """An array of a part about its own nodes: a column, or `ids`, `clusters` or a split."""
    return f"part-{part}/node-{t}/{name}.bin"


def edge_path(part: int, e: int, name: str) -> str:
    """An array of a part about its edges: a column, or `indptr`, `indices`, `ids` or `halo`."""
    return f"part-{part}/edge-{e}/{name}.bin"


def link_path(split: str, e: int) -> str:
    """Held-out links of a type."""
    return f"links/{split}-{e}.bin"


def numpy_dtype(name: str) -> np.dtype:
    """How numpy sees an array; it has no `bfloat16`, whose bits are shown as `uint16`."""
    return np.dtype("uint16" if name == "bfloat16" else name).newbyteorder("<")


def check_column_names(names: Sequence[str]) -> None:
    """Make sure that every column can have a file named after it.

    Raises:
        SpecError: Two columns share a name, or a name cannot be that of a file.
    """
    for i, name in enumerate(names):
        if not re.fullmatch(COLUMN_PATTERN, name) or name in RESERVED:
            raise SpecError(
                f"a column is called {name!r}",
                "use letters, digits and _ and none of " + ", ".join(sorted(RESERVED)),
            )
        if name in names[:i]:
            raise SpecError(f"two columns are called {name!r}", "rename one of them")


def load_manifest(folder: Path) -> Manifest:
    """Read what a directory of parts contains.

    Raises:
        SpecError: It is not there, is no manifest, or is one of another version.
    """
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise SpecError(
            f"{folder} is no partitioned graph, {_what_is_there(folder)}",
            "make one with `headrace partition`",
        ) from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read ({error.strerror})", "check the file") from None
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        raise _explain(path, text, error) from None


def _what_is_there(folder: Path) -> str:
    if folder.is_dir():
        return f"it has no {MANIFEST}"
    if folder.exists():
        return "it is a file"
    # Whoever reads this may be in another directory than who looked.
    return f"there is no {'such directory' if folder.is_absolute() else folder.absolute()}"


def save_manifest(manifest: Manifest, folder: Path) -> None:
    """Write `manifest.json`, whole or not at all."""
    path = folder / MANIFEST
    fresh = path.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(manifest.to_text(indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _explain(path: Path, text: bytes, error: ValidationError) -> SpecError:
    try:
        found = json.loads(text)
    except ValueError as why:
        return SpecError(f"{path} is not JSON ({why})", PARTITION_AGAIN)
    if not isinstance(found, dict):
        return SpecError(f"{path} is no manifest", PARTITION_AGAIN)
    version = found.get("version", FORMAT_VERSION)
    if version != FORMAT_VERSION:
        newer = isinstance(version, int) and version > FORMAT_VERSION
        return SpecError(
            f"{path} has format version {version!r}, this headrace reads {FORMAT_VERSION}",
            "upgrade headrace" if newer else PARTITION_AGAIN,
        )
    detail = error.errors(include_url=False)[0]
    own = detail.get("ctx", {}).get("error")
    if isinstance(own, SpecError):
        return SpecError(f"{path}: {own.problem}", own.remedy)
    at = ".".join(str(step) for step in detail["loc"])
    return SpecError(f"{path}: {at}: {detail['msg']}", PARTITION_AGAIN)
