"""Graphs in Parquet or Arrow tables, described by a small YAML file.

    version: 1
    name: shop
    nodes:
      user: {path: users/*.parquet, id: user_id, features: embedding}
      item: {path: items.parquet, id: sku, features: [price, weight], label: kind, split: part}
    edges:
      - {type: [user, bought, item], path: sales/*.parquet, src: user_id, dst: sku,
         columns: {time: sold_at}, reverse: bought_by}

Tables are read in batches of rows and may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import BeforeValidator, Field, ValidationError

from headrace.core.errors import SpecError
from headrace.core.values import Value
from headrace.graph.schema import SPLITS, Column, EdgeTable, EdgeType, GraphSource, NodeTable
from headrace.graph.sources.arrow_files import TableFiles
from headrace.graph.sources.keys import Keys
from headrace.graph.sources.validate import check_names, written

_SPLIT_WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _as_mapping(value: object) -> object:
    return {name: name for name in value} if isinstance(value, list | tuple) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(min_length=1)]
Renamed = Annotated[Mapping[str, str], BeforeValidator(_as_mapping)]


class NodeTableSpec(Value):
    """Location of the nodes of one type.

    Attributes:
        path: File or files, with wildcards, relative to the YAML file.
        id: Column with keys, integers or strings; without it edges refer to row numbers from 0.
        features: Columns that become `x`, concatenated; or one column with lists.
        label: Column that becomes `y`.
        split: Column with `train`, `val`, `test` or nothing.
        columns: Further columns to keep, as a list or as `new name: column`.
    """

    path: Names
    id: str | None = None
    features: Names | None = None
    label: str | None = None
    split: str | None = None
    columns: Renamed = Field(default_factory=dict)


class EdgeTableSpec(Value):
    """Location of the edges of one type.

    Attributes:
        type: Source node type, relation, destination node type.
        path: File or files, with wildcards, relative to the YAML file.
        src: Column with keys of the sources.
        dst: Column with keys of the destinations.
        weight: Column that becomes `edge_weight`.
        features: Columns that become `edge_attr`.
        columns: Further columns to keep, as a list or as `new name: column`.
        reverse: Relation to add with the reversed edges.
    """

    type: tuple[str, str, str]
    path: Names
    src: str
    dst: str
    weight: str | None = None
    features: Names | None = None
    columns: Renamed = Field(default_factory=dict)
    reverse: str | None = None


class GraphSpec(Value):
    """A graph in tables.

    Attributes:
        version: Version of the file format.
        name: Name of the graph; defaults to the folder's name.
        nodes: By node type.
        edges: By edge type.
    """

    version: Literal[1] = 1
    name: str | None = None
    nodes: Mapping[str, NodeTableSpec] = Field(min_length=1)
    edges: tuple[EdgeTableSpec, ...] = Field(min_length=1)


def from_tables(path: str | Path) -> GraphSource:
    """Open a graph in tables, described by a YAML file."""
    path = Path(path)
    spec = read_spec(path)
    nodes, keys = [], {}
    for name, each in spec.nodes.items():
        table = TableFiles(_paths(path, each.path), f"table {name}")
        keys[name] = Keys(table, each.id)
        nodes.append(_node_table(name, each, table))
    edges: list[EdgeTable] = []
    for one in spec.edges:
        for end in (one.type[0], one.type[2]):
            if end not in keys:
                raise SpecError(
                    f"{path}: edges {written(one.type)} refer to the node type {end}, which is "
                    "not listed",
                    f"add {end} under nodes, or use one of {', '.join(keys)}",
                )
        table = TableFiles(_paths(path, one.path), f"table {written(one.type)}")
        ends = (keys[one.type[0]], keys[one.type[2]])
        edges.append(_edge_table(one, table, ends))
        if one.reverse is not None:
            edges.append(_edge_table(one, table, ends, is_reverse=True))
    source = GraphSource(spec.name or path.absolute().parent.name, tuple(nodes), tuple(edges))
    check_names(source)
    return source


def read_spec(path: Path) -> GraphSpec:
    """Read the YAML file."""
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(f"{path} does not exist", "check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} cannot be read ({error})", "give a YAML file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        reason = getattr(error, "problem", None) or "not YAML"
        raise SpecError(f"{path}{line}: {reason}", "correct the YAML") from None
    if not isinstance(data, dict):
        raise SpecError(f"{path} has no keys", "write version, nodes and edges")
    if data.get("version", 1) != 1:
        raise SpecError(
            f"{path} has version {data['version']!r}, this headrace reads version 1",
            "write `version: 1`, or upgrade headrace",
        )
    try:
        return GraphSpec.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(key) for key in first["loc"])
        if first["type"] == "extra_forbidden":
            raise SpecError(f"{path} has an unknown key {where}", "remove or rename it") from None
        raise SpecError(f"{path}, {where}: {first['msg']}", "correct this entry") from None


def _paths(file: Path, patterns: tuple[str, ...]) -> list[Path]:
    found: list[Path] = []
    for pattern in patterns:
        folder = file.parent
        if any(mark in pattern for mark in "*?["):
            root = Path(pattern).anchor
            matches = sorted(
                Path(root).glob(str(Path(pattern).relative_to(root)))
                if root
                else folder.glob(pattern)
            )
            if not matches:
                raise SpecError(f"{file}: no file matches {pattern}", "check the pattern")
            found += matches
        else:
            found.append(folder / pattern)
    return found


def _node_table(name: str, spec: NodeTableSpec, table: TableFiles) -> NodeTable:
    columns: list[Column] = []
    if spec.features is not None:
        columns.append(table.column("x", spec.features, narrow=True))
    if spec.label is not None:
        columns.append(table.column("y", [spec.label]))
    columns += [table.column(new, [old]) for new, old in spec.columns.items()]
    splits = {} if spec.split is None else _splits(table, spec.split)
    return NodeTable(name, table.num_rows, tuple(columns), splits)


def _edge_table(
    spec: EdgeTableSpec, table: TableFiles, ends: tuple[Keys, Keys], is_reverse: bool = False
) -> EdgeTable:
    columns: list[Column] = []
    if spec.weight is not None:
        columns.append(table.column("edge_weight", [spec.weight], narrow=True))
    if spec.features is not None:
        columns.append(table.column("edge_attr", spec.features, narrow=True))
    columns += [table.column(new, [old]) for new, old in spec.columns.items()]
    table.check_column(spec.src)
    table.check_column(spec.dst)

    def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for row, batch in table.batches([spec.src, spec.dst]):
            src = ends[0].rows(batch.column(0), table, spec.src, row)
            dst = ends[1].rows(batch.column(1), table, spec.dst, row)
            yield (dst, src) if is_reverse else (src, dst)

    edge_type: EdgeType = spec.type
    if is_reverse:
        edge_type = (spec.type[2], str(spec.reverse), spec.type[0])
    return EdgeTable(edge_type, table.num_rows, chunks, tuple(columns))


def _splits(table: TableFiles, field: str) -> dict[str, np.ndarray]:
    found: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
    for row, batch in table.batches([field]):
        counted = batch.column(0).cast("string").dictionary_encode()
        codes = counted.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for code, word in enumerate(counted.dictionary.to_pylist()):
            at = np.flatnonzero(codes == code) + row
            if word == "":
                continue
            if word not in _SPLIT_WORDS:
                raise SpecError(
                    f"{field} of {table.name} is {word!r} in row {at[0]:,}",
                    "use train, val, test or an empty value",
                )
            found[_SPLIT_WORDS[word]].append(at)
    return {split: np.sort(np.concatenate(ids)) for split, ids in found.items() if ids}
