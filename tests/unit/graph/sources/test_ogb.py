from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.schema import Column
from headrace.graph.sources import ogb
from headrace.graph.sources.ogb import from_ogb, is_ogb
from headrace.graph.sources.validate import check

pytest.importorskip("pyarrow")

SPLITS = {"split/time/train": "3\n0\n", "split/time/valid": "1\n", "split/time/test": "2\n"}
PLAIN = SPLITS | {
    "raw/edge": "0,1\n1,2\n2,3\n",
    "raw/num-node-list": "4\n",
    "raw/num-edge-list": "3\n",
    "raw/node-feat": "0.5,1\n1.5,2\n2.5,3\n3.5,4\n",
    "raw/node-label": "0\n1\n1\n0\n",
    "raw/node_year": "2001\n2002\n2003\n2004\n",
    "raw/edge-feat": "0.25\n0.5\n0.75\n",
}
TYPED = {
    "raw/num-node-dict": "author,paper\n2,3\n",
    "raw/triplet-type-list": "author,writes,paper\npaper,cites,paper\n",
    "raw/nodetype-has-label": "author,paper\nFalse,True\n",
    "raw/node-feat/paper/node-feat": "0.5\n1.5\n2.5\n",
    "raw/node-label/paper/node-label": "2\n1\n0\n",
    "raw/relations/author___writes___paper/edge": "0,0\n1,2\n",
    "raw/relations/author___writes___paper/num-edge-list": "2\n",
    "raw/relations/author___writes___paper/edge_reltype": "7\n7\n",
    "raw/relations/paper___cites___paper/edge": "0,1\n",
    "raw/relations/paper___cites___paper/num-edge-list": "1\n",
    "split/time/nodetype-has-split": "author,paper\nFalse,True\n",
    "split/time/paper/train": "0\n",
    "split/time/paper/valid": "1\n",
    "split/time/paper/test": "2\n",
}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    return root


def by_name(columns: tuple[Column, ...]) -> dict[str, Column]:
    return {column.name: column for column in columns}


def test_comma_separated_files(tmp_path: Path) -> None:
    root = write(tmp_path / "arxiv", PLAIN)
    assert is_ogb(root)
    source = from_ogb(root)
    check(source)
    assert (source.name, source.num_nodes, source.num_edges) == ("arxiv", 4, 3)
    nodes, edges = source.nodes[0], source.edges[0]
    columns = by_name(nodes.columns)
    assert set(columns) == {"x", "y", "node_year"}
    assert columns["x"].dtype == np.float32
    assert columns["x"].read(1, 3).tolist() == [[1.5, 2], [2.5, 3]]
    assert columns["y"].read(0, 4).tolist() == [0, 1, 1, 0]
    assert columns["node_year"].read(0, 1).tolist() == [2001]
    assert {name: ids.tolist() for name, ids in nodes.splits.items()} == {
        "train": [0, 3],
        "val": [1],
        "test": [2],
    }
    assert [(s.tolist(), d.tolist()) for s, d in edges.chunks()] == [([0, 1, 2], [1, 2, 3])]
    assert by_name(edges.columns)["edge_attr"].read(0, 3).tolist() == [0.25, 0.5, 0.75]


def test_reverse_edges_follow_theirs_as_in_ogb(tmp_path: Path) -> None:
    edges = from_ogb(write(tmp_path, PLAIN), add_reverse=True).edges[0]
    assert edges.num_edges == 6
    ((src, dst),) = edges.chunks()
    assert src.tolist() == [0, 1, 1, 2, 2, 3]
    assert dst.tolist() == [1, 0, 2, 1, 3, 2]
    weights = edges.columns[0]
    assert weights.read(0, 6).tolist() == [0.25, 0.25, 0.5, 0.5, 0.75, 0.75]
    assert weights.read(1, 4).tolist() == [0.25, 0.5, 0.5]


def test_large_files_come_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ogb, "_BLOCK_BYTES", 1000)
    num_edges = 5000
    ids = np.arange(num_edges)
    files = PLAIN | {
        "raw/edge": "".join(f"{i},{(i * 7) % num_edges}\n" for i in ids),
        "raw/num-node-list": f"{num_edges}\n",
        "raw/num-edge-list": f"{num_edges}\n",
    }
    for name in ("raw/node-feat", "raw/node-label", "raw/node_year", "raw/edge-feat"):
        del files[name]
    source = from_ogb(write(tmp_path, files))
    check(source)
    chunks = list(source.edges[0].chunks())
    assert len(chunks) > 5
    assert np.array_equal(np.concatenate([dst for _, dst in chunks]), ids * 7 % num_edges)


def test_several_node_types(tmp_path: Path) -> None:
    source = from_ogb(write(tmp_path, TYPED), add_reverse=True)
    check(source)
    assert [(table.name, table.num_nodes) for table in source.nodes] == [
        ("author", 2),
        ("paper", 3),
    ]
    assert [table.edge_type for table in source.edges] == [
        ("author", "writes", "paper"),
        ("paper", "rev_writes", "author"),
        ("paper", "cites", "paper"),
        ("paper", "rev_cites", "paper"),
    ]
    author, paper = source.nodes
    assert not author.columns
    assert not author.splits
    assert by_name(paper.columns)["y"].read(0, 3).tolist() == [2, 1, 0]
    assert by_name(paper.columns)["x"].shape == ()
    assert paper.splits["val"].tolist() == [1]
    assert by_name(source.edges[0].columns)["edge_reltype"].read(0, 2).tolist() == [7, 7]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_files(tmp_path: Path, save: Callable[..., None]) -> None:
    write(tmp_path, SPLITS)
    (tmp_path / "raw").mkdir()
    save(
        tmp_path / "raw" / "data.npz",
        edge_index=np.array([[0, 1, 2], [1, 2, 3]]),
        node_feat=np.eye(4, dtype=np.float32),
        node_year=np.arange(4)[:, None],
        num_nodes_list=np.array([4]),
        num_edges_list=np.array([3]),
    )
    labels = np.array([[0], [np.nan], [2], [np.nan]], np.float32)
    save(tmp_path / "raw" / "node-label.npz", node_label=labels)
    source = from_ogb(tmp_path)
    check(source)
    columns = by_name(source.nodes[0].columns)
    assert set(columns) == {"x", "node_year", "y"}
    assert columns["y"].dtype == np.int64
    assert columns["y"].read(0, 4).tolist() == [0, -1, 2, -1]
    assert np.array_equal(columns["x"].read(1, 3), np.eye(4)[1:3])
    assert [(s.tolist(), d.tolist()) for s, d in source.edges[0].chunks()] == [
        ([0, 1, 2], [1, 2, 3])
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"raw/num-node-list": None}, "num-node-list.csv.gz does not exist"),
        ({"raw/num-edge-list": None}, "num-edge-list.csv.gz does not exist"),
        ({"raw/num-node-list": "2\n2\n"}, "has 2 graphs"),
        ({"raw/edge": "0,1\n1,2\n"}, "2 node-to-node edges, but 3"),
        ({"raw/edge": "0,1\n1,2\n2,4\n"}, "node 4"),
        ({"raw/edge": "0,1\n1,2\n2,x\n"}, "edge.csv.gz cannot be read as numbers"),
        ({"raw/edge": "0,1\n1,2\n2,\n"}, "empty field"),
        ({"raw/edge": "0,1\n1,2,3\n2,3\n"}, "cannot be read as numbers"),
        ({"raw/edge": "0,1\n1.5,2\n2,3\n"}, "cannot be read as numbers"),
        ({"raw/node-feat": "0.5,1\n1.5,2\n"}, "for rows 0 to 4"),
        ({"raw/node-feat": "0.5,1\nnan,2\n2.5,3\n3.5,4\n"}, "nan in row 1, entry 0"),
        ({"raw/node-label": "0\n1\n"}, "column y"),
        ({"split/time/train": "9\n"}, "train split .* node 9"),
        ({"split/other/train": "1\n"}, "several splits.*other, time"),
        ({"raw/edge": None}, "has no raw/edge.csv.gz"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, changes: dict[str, str | None], said: str) -> None:
    merged = PLAIN | changes
    root = write(tmp_path, {name: text for name, text in merged.items() if text is not None})
    with pytest.raises(SpecError, match=said):
        check(from_ogb(root))


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    root = write(tmp_path, PLAIN)
    path = root / "raw" / "edge.csv.gz"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(SpecError, match=r"edge.csv.gz"):
        check(from_ogb(root))


def test_a_missing_split_lists_those_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no split scaffold.*time"):
        from_ogb(write(tmp_path, PLAIN), split="scaffold")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"raw/num-node-dict": "author,paper\n2\n"}, "one number per node type"),
        ({"raw/relations/a___b/edge": "0,1\n"}, "is not an edge type"),
        ({"raw/relations/author___writes___paper/edge": "0,0\n5,2\n"}, "node 5"),
        ({"raw/num-node-dict": "author,book\n2,3\n"}, "type paper"),
    ],
)
def test_wrong_typed_files_are_named(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        check(from_ogb(write(tmp_path, TYPED | changes)))
