from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from headrace.graph.schema import GraphSource
from headrace.graph.sources.tables import from_tables
from headrace.graph.sources.validate import check

debian_graph = pytest.importorskip("examples.debian_graph")

INDEX = """\
Package: ash
Section: shells
Description: a small shell
Depends: libc6:any (>= 2.34), dash | bash (<< 5), ash, none
Tag: role::program,
 use::shell

Package: libc6
Section: libs
Description: the C library
Suggests: ash

Package: ash
Section: games
Description: a later version

Package: dash
Section: non-free/shells
"""
CONTENTS = [
    "bin/ash                     shells/ash\nbin/sh\tx\nusr/lib/libc.so.6  libs/libc6\n",
    "bin/ash  shells/ash,shells/dash\nusr/lib/a b/c.so.6 libs/libc6\nvar/x other/none\n",
]


def build(folder: Path, with_files: bool) -> GraphSource:
    packages = dict(sorted(debian_graph.read_packages(INDEX.splitlines(True)).items()))
    graph = debian_graph.write_packages(folder, packages, 0)
    if with_files:
        contents = [debian_graph.read_contents(text.splitlines(True)) for text in CONTENTS]
        more = debian_graph.write_files(folder, packages, contents)
        graph["nodes"] |= more["nodes"]
        graph["edges"] += more["edges"]
    (folder / "graph.yaml").write_text(yaml.safe_dump(graph, sort_keys=False))
    source = from_tables(folder / "graph.yaml")
    check(source)
    return source


def pairs(source: GraphSource, relation: str) -> list[tuple[int, int]]:
    (table,) = [table for table in source.edges if table.edge_type[1] == relation]
    return [(int(s), int(d)) for src, dst in table.chunks() for s, d in zip(src, dst, strict=True)]


def test_packages_and_relations(tmp_path: Path) -> None:
    source = build(tmp_path, with_files=False)
    # Alphabetical: ash, dash, libc6.
    assert source.num_nodes == 3
    assert pairs(source, "depends") == [(0, 1), (0, 2)]
    assert pairs(source, "rev_suggests") == [(0, 2)]
    x, y = source.nodes[0].columns
    assert y.read(0, 3).tolist() == [1, 1, 0]
    assert np.allclose(np.linalg.norm(x.read(0, 3), axis=1), 128**0.5)
    ids = np.concatenate(list(source.nodes[0].splits.values()))
    assert sorted(ids.tolist()) == [0, 1, 2]


def test_files_and_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian_graph, "CHUNK_ROWS", 2)
    source = build(tmp_path, with_files=True)
    sizes = {table.name: table.num_nodes for table in source.nodes}
    # Files: bin/ash, usr/lib/a b/c.so.6, usr/lib/libc.so.6.
    # Directories: bin, "", usr/lib/a b, usr/lib, usr.
    assert sizes == {"package": 3, "file": 3, "directory": 5}
    assert pairs(source, "ships") == [(0, 0), (1, 0), (2, 1), (2, 2)]
    assert pairs(source, "file_in") == [(0, 0), (1, 2), (2, 3)]
    assert pairs(source, "directory_in") == [(0, 1), (2, 3), (3, 4), (4, 1)]
    assert pairs(source, "holds_file") == [(0, 0), (2, 1), (3, 2)]
    (depth,) = source.nodes[2].columns
    assert depth.read(0, 5).tolist() == [1, 0, 3, 2, 1]
    suffix = source.nodes[1].columns[0].read(0, 3)
    assert suffix[1] == suffix[2] != suffix[0]
