"""The manifest of a partitioned graph (`manifest.json`) and the paths of its arrays.

Folders are numbered by type because relation names such as `/people/person/nationality` are not
valid file names.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from headrace.core.errors import SpecError
from headrace.core.validation_errors import first_problem
from headrace.core.values import CheckedFile, Value
from headrace.graph.format.encoding import Encoding
from headrace.graph.schema import EdgeType
from headrace.linux.atomic_write import atomic_write

if TYPE_CHECKING:
    from headrace.graph.format.row_codec import RowCodec

FORMAT_VERSION = 2
"""Version 2 has encoded columns; graphs without them are still written as version 1."""

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
"""Stored dtypes; numpy's names, little-endian."""

LABELS = "y"
"""Name of the label column, as in PyG."""

FEATURES = "x"
"""Name of the feature column, as in PyG; only features are narrowed or encoded."""

SplitName = Literal["train", "val", "test"]

RESERVED = frozenset({"ids", "train", "val", "test", "clusters", "indptr", "indices", "halo"})
"""Names of the format's own files, which columns may not have."""

COLUMN_PATTERN = r"^[A-Za-z_][A-Za-z0-9_.\-]{0,99}$"

PARTITION_AGAIN = "partition the graph again"

CHUNK_BYTES = 1 << 24
"""Chunk size of the checksums of large files, which locate damage within a file."""

_Size = Annotated[int, Field(ge=0)]
_Checksum = Annotated[int, Field(ge=0, lt=2**32)]
_Offsets = Annotated[tuple[_Size, ...], Field(min_length=2)]


class FileInfo(Value):
    """One array file: raw, little-endian, row-major.

    Attributes:
        dtype: Element type; `bfloat16` is the upper half of a `float32`.
        shape: Shape of the array.
        bytes: Size of the file.
        crc32: CRC-32 of the whole file (zlib).
        chunks: CRC-32 of every `CHUNK_BYTES` of larger files; empty in graphs written before 0.2.
    """

    dtype: DTypeName
    shape: tuple[_Size, ...]
    bytes: _Size
    crc32: _Checksum
    chunks: tuple[_Checksum, ...] = ()


class ColumnInfo(Value):
    """One value per node or per edge.

    Attributes:
        name: Name of the column and of its file in every partition.
        dtype: Dtype of the values; the stored one unless rows are encoded.
        shape: Shape of one row; empty for a scalar.
        encoding: How rows are stored; None as an array of the dtype.
    """

    name: Annotated[str, Field(pattern=COLUMN_PATTERN)]
    dtype: DTypeName
    shape: tuple[_Size, ...] = ()
    encoding: Encoding | None = None

    @property
    def value_bytes(self) -> int:
        """Size of the values of a row."""
        return numpy_dtype(self.dtype).itemsize * math.prod(self.shape)

    @property
    def row_bytes(self) -> float:
        """Mean size of a row as it is stored and sent."""
        return self.value_bytes if self.encoding is None else self.encoding.row_bytes

    @property
    def codec(self) -> RowCodec | None:
        """Encodes and decodes rows; None if they are stored as they are."""
        # Not at import: kernels take a second to load.
        from headrace.graph.format.row_codec import codec

        return codec(self.encoding, self.dtype, self.shape, self.name)

    @model_validator(mode="after")
    def _encoding_fits(self) -> Self:
        if self.encoding is None:
            return self
        kind, words = self.encoding.kind, self.encoding.words
        itemsize = numpy_dtype(self.dtype).itemsize
        allowed = {
            "bits": len(words) == 2,
            "sparse": len(words) <= 1 and itemsize > 1,
            "float16": not words and self.dtype == "float32",
            "int8": not words and self.dtype == "float32",
            "int4": not words and self.dtype == "float32",
        }
        is_small = all(word < 1 << 8 * itemsize for word in words)
        if not (allowed[kind] and is_small and self.value_bytes):
            raise SpecError(
                f"column {self.name!r} of {self.dtype} {self.shape} cannot be encoded as {kind}",
                PARTITION_AGAIN,
            )
        return self

    @model_serializer(mode="wrap")
    def _omit_plain(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Version 1 has no encodings.
        return {k: v for k, v in write(self).items() if (k, v) != ("encoding", None)}


class NodeInfo(Value):
    """All nodes of one type.

    Attributes:
        name: Node type.
        offsets: Partition `p` owns the new ids from `offsets[p]` to `offsets[p + 1]`.
        columns: Values per node.
        splits: Number of nodes of each split in every partition.
        num_classes: Largest label `y` plus one; none without integer labels and in graphs written
            before 0.2.
    """

    name: str
    offsets: _Offsets
    columns: tuple[ColumnInfo, ...] = ()
    splits: Mapping[SplitName, tuple[_Size, ...]] = Field(default_factory=dict)
    num_classes: _Size | None = None

    @property
    def num_nodes(self) -> int:
        """Number of nodes in all partitions."""
        return self.offsets[-1]


class EdgeInfo(Value):
    """All edges of one type; an edge belongs to the partition that owns its destination.

    Attributes:
        src: Node type of the sources.
        relation: Name of the relation.
        dst: Node type of the destinations.
        offsets: Partition `p` has `offsets[p + 1] - offsets[p]` of the edges.
        columns: Values per edge.
        has_ids: Whether original edge ids are stored.
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
        """Number of edges in all partitions."""
        return self.offsets[-1]


class LinkInfo(Value):
    """Held-out links of one edge type.

    Attributes:
        split: `train`, `val` or `test`.
        edge: Position of the edge type.
        num_links: Number of links.
    """

    split: SplitName
    edge: _Size
    num_links: _Size


class Manifest(CheckedFile):
    """A partitioned graph.

    Attributes:
        version: Version of the format.
        name: Name of the graph.
        num_parts: Number of partitions.
        method: Name of the partitioner.
        seed: Random seed of the partitioner.
        shares: Target fraction of the graph per partition.
        num_clusters: Second-level clusters per partition.
        nodes: Node types, in the order of their folders.
        edges: Edge types, in the order of their folders.
        links: Held-out links.
        quality: Quality metrics of the partitioning.
        note: Describes generated data, such as splits that the source does not define.
        files: All files except the manifest, by path.
    """

    version: Literal[1, 2] = 1
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
                    raise SpecError(f"{split} needs one count per partition", PARTITION_AGAIN)
        for edge in self.edges:
            self._check_offsets(f"edges of type {edge.edge_type}", edge.offsets)
            check_column_names([column.name for column in edge.columns])
            if any(column.encoding is not None for column in edge.columns):
                raise SpecError("columns of edges cannot be encoded", PARTITION_AGAIN)
            if not {edge.src, edge.dst} <= set(names):
                problem = f"edges go from {edge.src!r} to {edge.dst!r}, node types are {names}"
                raise SpecError(problem, PARTITION_AGAIN)
        if len(self.shares) != self.num_parts:
            problem = f"there are {self.num_parts} partitions and {len(self.shares)} shares"
            raise SpecError(problem, PARTITION_AGAIN)
        if any(link.edge >= len(self.edges) for link in self.links):
            raise SpecError("links refer to an edge type that does not exist", PARTITION_AGAIN)
        return self

    def _check_offsets(self, what: str, offsets: tuple[int, ...]) -> None:
        rises = all(low <= high for low, high in pairwise(offsets))
        if len(offsets) != self.num_parts + 1 or offsets[0] != 0 or not rises:
            problem = f"offsets of {what} do not ascend from 0 over {self.num_parts} partitions"
            raise SpecError(problem, PARTITION_AGAIN)

    def node_index(self, name: str) -> int:
        """Position of a node type; raises SpecError if it does not exist."""
        for t, node in enumerate(self.nodes):
            if node.name == name:
                return t
        known = ", ".join(node.name for node in self.nodes)
        raise SpecError(f"the graph has no nodes of type {name!r}", f"use one of {known}")

    def edge_index(self, edge_type: EdgeType) -> int:
        """Position of an edge type; raises SpecError if it does not exist."""
        for e, edge in enumerate(self.edges):
            if edge.edge_type == tuple(edge_type):
                return e
        known = ", ".join(" ".join(edge.edge_type) for edge in self.edges[:8])
        raise SpecError(f"the graph has no edges of type {edge_type!r}", f"use one of {known}")


def starts_path(part: int, t: int, name: str) -> str:
    """Path of the first unit of every row of a `sparse` node column."""
    # Columns may not be named like this.
    return f"part-{part}/node-{t}/{name}@starts.bin"


def ids_path(t: int) -> str:
    """Path of the new ids of all nodes of a type, by original id."""
    return f"ids/node-{t}.bin"


def node_path(part: int, t: int, name: str) -> str:
    """Path of a node array of a partition: a column, `ids`, `clusters` or a split."""
    return f"part-{part}/node-{t}/{name}.bin"


def edge_path(part: int, e: int, name: str) -> str:
    """Path of an edge array of a partition: a column, `indptr`, `indices`, `ids` or `halo`."""
    return f"part-{part}/edge-{e}/{name}.bin"


def link_path(split: str, e: int) -> str:
    """Path of the held-out links of an edge type."""
    return f"links/{split}-{e}.bin"


def numpy_dtype(name: str) -> np.dtype:
    """Dtype of the mapped array; `bfloat16`, which numpy lacks, is mapped as `uint16`."""
    return np.dtype("uint16" if name == "bfloat16" else name).newbyteorder("<")


def check_column_names(names: Sequence[str]) -> None:
    """Raise SpecError if column names are duplicate or not usable as file names."""
    for i, name in enumerate(names):
        if not re.fullmatch(COLUMN_PATTERN, name) or name in RESERVED:
            raise SpecError(
                f"column name {name!r} is not allowed",
                "use letters, digits and _, but none of " + ", ".join(sorted(RESERVED)),
            )
        if name in names[:i]:
            raise SpecError(f"two columns are named {name!r}", "rename one of them")


def load_manifest(folder: Path) -> Manifest:
    """Read the manifest of a partitioned graph.

    Raises:
        SpecError: It is missing, invalid, or of another format version.
    """
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise SpecError(
            f"{folder} is not a partitioned graph, {_what_is_there(folder)}",
            "create one with `headrace partition`",
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
    # The reader of the message may be in another working directory.
    return f"there is no {'such directory' if folder.is_absolute() else folder.absolute()}"


def save_manifest(manifest: Manifest, folder: Path) -> None:
    """Write `manifest.json` atomically."""
    atomic_write(folder / MANIFEST, manifest.to_text(indent=1) + "\n", sync=True)


def _explain(path: Path, text: bytes, error: ValidationError) -> SpecError:
    try:
        found = json.loads(text)
    except ValueError as why:
        return SpecError(f"{path} is not JSON ({why})", PARTITION_AGAIN)
    if not isinstance(found, dict):
        return SpecError(f"{path} is not a manifest", PARTITION_AGAIN)
    version = found.get("version", FORMAT_VERSION)
    if version not in range(1, FORMAT_VERSION + 1):
        newer = isinstance(version, int) and version > FORMAT_VERSION
        return SpecError(
            f"{path} has format version {version!r}, this headrace reads 1 to {FORMAT_VERSION}",
            "upgrade headrace" if newer else PARTITION_AGAIN,
        )
    own = error.errors(include_url=False)[0].get("ctx", {}).get("error")
    if isinstance(own, SpecError):
        return SpecError(f"{path}: {own.problem}", own.remedy)
    return SpecError(f"{path}: {first_problem(error)}", PARTITION_AGAIN)


def edges_have(manifest: Manifest, weight: str | None, time: str | None) -> bool:
    """Whether times are those of edges, not of nodes.

    Raises:
        SpecError: A column does not exist, or its dtype is not supported.
    """
    of_edges = {column.name: column for edge in manifest.edges for column in edge.columns}
    of_nodes = {column.name: column for node in manifest.nodes for column in node.columns}
    for kind, column, known in (
        ("edge", weight, of_edges),
        ("edge or node", time, of_nodes | of_edges),
    ):
        if column is not None and column not in known:
            raise SpecError(
                f"the graph has no column {column!r}", f"name an existing {kind} column"
            )
        if column is not None and known[column].dtype == "bfloat16":
            raise SpecError(f"{column!r} is bfloat16", "store weights and times in another dtype")
    return time in of_edges
