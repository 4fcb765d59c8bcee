"""Broken inputs: one clear error each, and no half-written directory."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.adjacency import Csc
from headrace.graph.build.node_writer import write_parts
from headrace.graph.build.partition import PartitionSpec, partition
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.format.verify import verify
from headrace.graph.schema import Column, GraphSource, LinkTable
from headrace.graph.sources.validate import checked
from tests.unit.graph.small_graphs import (
    NODE_TO_NODE,
    edge_table,
    heterogeneous,
    homogeneous,
    plain_csc,
    write,
)

Change = Callable[[dict[str, Any]], None]


def make(source: GraphSource, target: Path, **options: Any) -> None:
    """Partition a source at random."""
    given: dict[str, Any] = {"num_parts": 3, "clusters": None, **options}
    parts = given.pop("parts", None)
    if parts is None:
        parts = np.arange(source.num_nodes, dtype=np.int32) % max(1, given["num_parts"])
    cscs = given.pop("cscs", None)
    partial = target.with_name(target.name + ".partial")
    try:
        source = checked(source)
        cscs = cscs or [plain_csc(source, table) for table in source.edges]
        write_parts(source, cscs, parts, given.pop("clusters"), partial, **given)
    except SpecError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    partial.rename(target)


def with_column(column: Column) -> GraphSource:
    source = homogeneous()
    return replace(source, nodes=(replace(source.nodes[0], columns=(column,)),))


def with_split(split: str, ids: object) -> GraphSource:
    source = homogeneous()
    return replace(source, nodes=(replace(source.nodes[0], splits={split: np.array(ids)}),))


def with_links(*links: LinkTable) -> GraphSource:
    return replace(heterogeneous(), links=links)


def with_edges(src: object, dst: object) -> GraphSource:
    table = edge_table(NODE_TO_NODE, np.array(src), np.array(dst))
    return replace(homogeneous(), edges=(table,))


def with_csc(**changes: Any) -> dict[str, Any]:
    source = homogeneous()
    return {"cscs": [replace(plain_csc(source, source.edges[0]), **changes)]}


X = np.ones((30, 2), np.float32)
WRITES = ("author", "writes", "paper")
ONE = np.array([0])
CSC = plain_csc(homogeneous(), homogeneous().edges[0])

SOURCES: dict[str, tuple[GraphSource, dict[str, Any], str]] = {
    "truncated column": (
        with_column(Column("x", X.dtype, (2,), lambda start, stop: X[start : stop - 1])),
        {},
        "returned float32 (29, 2) for rows 0 to 30",
    ),
    "column of another type": (
        with_column(Column("x", np.dtype(np.float64), (2,), lambda start, stop: X[start:stop])),
        {},
        "returned float32",
    ),
    "NaN features": (with_column(Column.of("x", np.where(X > 0, np.nan, X))), {}, "is nan"),
    "infinite features": (with_column(Column.of("x", X * np.inf)), {}, "is inf"),
    "text as a column": (with_column(Column.of("x", X.astype(str))), {}, "has dtype str"),
    "dates as a column": (
        with_column(Column.of("x", np.zeros(30, "M8[s]"))),
        {},
        "convert it to numbers",
    ),
    "column that leaves the folder": (
        with_column(Column.of("../../x", X)),
        {},
        "column name '../../x' is not allowed",
    ),
    "column named as a file of the format": (
        with_column(Column.of("ids", X)),
        {},
        "column name 'ids' is not allowed",
    ),
    "two columns of one name": (
        replace(
            homogeneous(),
            nodes=(replace(homogeneous().nodes[0], columns=(Column.of("x", X),) * 2),),
        ),
        {},
        "has the column x twice",
    ),
    "unknown type of features": (
        homogeneous(),
        {"features": "int2"},
        "use one of auto, float32, float16, bfloat16, int8, int4",
    ),
    "too large for float16": (
        with_column(Column.of("x", X * 1e6)),
        {"features": "float16"},
        "store them as bfloat16",
    ),
    "unknown split": (with_split("dev", [1, 2]), {}, "has an unknown split dev"),
    "split out of range": (with_split("train", [1, 30]), {}, "there are 30 node nodes"),
    "split of fractions": (with_split("train", [0.5]), {}, "float64"),
    "split with a node twice": (with_split("train", [1, 1]), {}, "has duplicates"),
    "dangling source": (with_edges([30], [0]), {}, "there are 30 node nodes"),
    "dangling destination": (with_edges([0], [-1]), {}, "is node -1"),
    "links of an unknown type": (
        with_links(LinkTable("test", ("paper", "likes", "author"), ONE, ONE)),
        {},
        "unknown edge type",
    ),
    "links to nowhere": (
        with_links(LinkTable("test", WRITES, ONE, ONE + 20)),
        {},
        "there are 20 paper nodes",
    ),
    "links with one end": (
        with_links(LinkTable("test", WRITES, ONE, ONE[:0])),
        {},
        "1 sources and 0 destinations",
    ),
    "links given twice": (
        with_links(*[LinkTable("test", WRITES, ONE, ONE)] * 2),
        {},
        "are given twice",
    ),
    "more parts than nodes": (
        homogeneous(),
        {"num_parts": 31},
        "31 partitions requested, but the graph has 30 nodes",
    ),
    "zero parts": (homogeneous(), {"num_parts": 0}, "0 partitions requested"),
    "parts of some nodes": (
        homogeneous(),
        {"parts": np.zeros(29, np.int32)},
        "one integer per node",
    ),
    "part that is not there": (
        homogeneous(),
        {"parts": np.full(30, 3, np.int32)},
        "parts range from 3 to 3, but there are 3",
    ),
    "negative cluster": (
        homogeneous(),
        {"clusters": np.full(30, -1, np.int32)},
        "clusters range from -1",
    ),
    "topology of other edges": (
        homogeneous(),
        with_csc(indptr=CSC.indptr[:-1], indices=CSC.indices[: CSC.indptr[-2]]),
        "has 29 destinations",
    ),
    "topology with dangling sources": (
        homogeneous(),
        with_csc(indices=CSC.indices + 1),
        "source ids that do not exist",
    ),
    "topology whose indptr falls": (
        homogeneous(),
        with_csc(indptr=np.concatenate([[0, 9], CSC.indptr[2:] * 0 + 8, [120]])[[*range(30), 31]]),
        "its indptr descends",
    ),
    "topology without edge ids": (homogeneous(), with_csc(edge_ids=None), "lacks edge ids"),
    "topology with too few edge ids": (
        homogeneous(),
        with_csc(edge_ids=np.arange(7)),
        "7 edge ids for 120",
    ),
}


@pytest.mark.parametrize("case", SOURCES)
def test_broken_source(case: str, tmp_path: Path) -> None:
    source, options, message = SOURCES[case]
    with pytest.raises(SpecError, match=re.escape(message)) as caught:
        make(source, tmp_path / "parts", **options)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "case",
    [name for name, (_, options, _) in SOURCES.items() if not {*options} - {"features"}],
)
def test_broken_source_in_the_whole_pipeline(case: str, tmp_path: Path) -> None:
    source, options, _ = SOURCES[case]
    wanted = PartitionSpec(shares=(0.5, 0.5), method="hash", **options)
    with pytest.raises(SpecError):
        partition(source, wanted, tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("function", ["pwrite", "write", "fsync"])
def test_disk_gets_full_in_the_whole_pipeline(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, function, full)
    with pytest.raises(SpecError, match="the disk is full"):
        partition(
            homogeneous(), PartitionSpec(shares=(0.5, 0.5), method="hash"), tmp_path / "parts"
        )
    assert list(tmp_path.iterdir()) == []


def test_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(SpecError, match=r"the disk is full: .* needs .*B, .*B are free"):
        make(homogeneous(), tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []


def test_disk_gets_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SpecError, match=r"the disk is full: .* free disk space"):
        make(homogeneous(), tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []


def test_other_failures_of_the_disk_are_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match="Input/output"):
        make(homogeneous(), tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


def edit(change: Change) -> Callable[[Path], None]:
    """Change the manifest, as a careless person would."""

    def apply(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        del manifest["checksum"]
        change(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return apply


def set_key(*keys: str | int, to: object) -> Callable[[Path], None]:
    def change(manifest: dict[str, Any]) -> None:
        at: Any = manifest
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = to

    return edit(change)


def cut(name: str, num_bytes: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, num_bytes)


def flip(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[0] ^= 1
        (folder / name).write_bytes(data)

    return apply


def remove_key(key: str) -> Callable[[Path], None]:
    return edit(lambda manifest: manifest.pop(key))


def replace_by_folder(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").mkdir()


FEATURES = "part-1/node-0/x.bin"

DIRECTORIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no directory": (shutil.rmtree, "there is no such directory"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "has no manifest.json"),
    "manifest is no JSON": (cut("manifest.json", 200), "is not JSON"),
    "manifest is a list": (
        lambda folder: (folder / "manifest.json").write_text("[1]"),
        "is not a manifest",
    ),
    "manifest is a directory": (replace_by_folder, "cannot be read"),
    "newer version": (set_key("version", to=3), "has format version 3, this headrace reads 1 to 2"),
    "strange version": (set_key("version", to="one"), "partition the graph again"),
    "missing key": (remove_key("nodes"), "nodes: Field required"),
    "unknown key": (set_key("colour", to="red"), "colour: Extra inputs"),
    "no parts": (set_key("num_parts", to=0), "num_parts"),
    "offsets of other parts": (
        set_key("num_parts", to=2),
        "do not ascend from 0 over 2 partitions",
    ),
    "offsets fall": (set_key("nodes", 0, "offsets", to=[0, 20, 10, 30]), "do not ascend"),
    "shares of other parts": (set_key("shares", to=[1.0]), "3 partitions and 1 shares"),
    "unknown end of edges": (set_key("edges", 0, "src", to="book"), "edges go from 'book'"),
    "unknown type of array": (
        set_key("files", FEATURES, "dtype", to="float8"),
        "Input should be 'bool'",
    ),
    "column outside": (
        set_key("nodes", 0, "columns", 0, "name", to="../x"),
        "nodes.0.columns.0.name",
    ),
    "file missing": (lambda folder: (folder / FEATURES).unlink(), "x.bin is missing"),
    "file too short": (cut(FEATURES, 40), "x.bin has 40 bytes instead of 200"),
    "file too long": (cut(FEATURES, 400), "x.bin has 400 bytes instead of 200"),
    "wrong checksum": (flip(FEATURES), "x.bin has the checksum"),
    "wrong shape": (set_key("files", FEATURES, "shape", to=[10, 4]), "has the shape (10, 4)"),
    "wrong type": (set_key("files", FEATURES, "dtype", to="int32"), "is int32 instead of float32"),
    "ids of fractions": (
        set_key("files", "part-0/node-0/ids.bin", "dtype", to="float32"),
        "which is not a dtype of ids",
    ),
    "file not in the manifest": (
        lambda folder: (folder / "part-0" / "notes.txt").write_text("hello"),
        "part-0/notes.txt does not belong here",
    ),
    "array not in the manifest": (
        edit(lambda manifest: manifest["files"].pop(FEATURES)),
        "the manifest lacks part-1/node-0/x.bin",
    ),
    "array of nothing": (
        edit(lambda manifest: manifest["files"].update({"y.bin": manifest["files"][FEATURES]})),
        "y.bin, which is not a file of the format",
    ),
}


@pytest.mark.parametrize("case", DIRECTORIES)
def test_broken_directory(case: str, tmp_path: Path) -> None:
    damage, message = DIRECTORIES[case]
    make(homogeneous(), tmp_path / "parts")
    assert verify(tmp_path / "parts") == []
    damage(tmp_path / "parts")
    try:
        found = verify(tmp_path / "parts")[0]
    except SpecError as error:
        found = str(error)
    assert message in found
    assert "\n" not in found


def test_a_short_file_is_noticed_when_it_is_mapped(tmp_path: Path) -> None:
    write(homogeneous(), tmp_path)
    info = open_graph(tmp_path).manifest.files[FEATURES]
    os.truncate(tmp_path / FEATURES, info.bytes - 4)
    with pytest.raises(SpecError, match=f"{info.bytes - 4} bytes instead of {info.bytes}"):
        open_graph(tmp_path).part(1).column("node", "x")
    set_key("files", FEATURES, "bytes", to=info.bytes - 4)(tmp_path)
    with pytest.raises(SpecError, match=r"do not fit float32"):
        open_graph(tmp_path).part(1).column("node", "x")


def test_there_are_many_cases() -> None:
    assert len(SOURCES) + len(DIRECTORIES) >= 50
    assert isinstance(CSC, Csc)
