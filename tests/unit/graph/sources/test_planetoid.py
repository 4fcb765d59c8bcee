from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.sources import planetoid
from headrace.graph.sources.planetoid import from_npz, undirected
from headrace.graph.sources.validate import check

PLANETOID: dict[str, Any] = {
    "x_data": [2.0, 3.0],
    "x_indices": [1, 0],
    "x_indptr": [0, 1, 2, 2],
    "x_shape": [3, 2],
    "edge_index": [[0, 1], [1, 2]],
    "y": [0, 1, 1],
    "train_mask": [True, False, False],
    "test_mask": [False, False, True],
}
BENCHMARK: dict[str, Any] = {
    "adj_data": [1.0, 1.0, 1.0],
    "adj_indices": [1, 1, 0],
    "adj_indptr": [0, 1, 2, 3],
    "adj_shape": [3, 3],
    "attr_data": [2.0, 3.0],
    "attr_indices": [1, 0],
    "attr_indptr": [0, 1, 2, 2],
    "attr_shape": [3, 2],
    "labels": [0, 1, 1],
}
TYPED: dict[str, Any] = {
    "src": [0, 1, 2],
    "dst": [1, 2, 0],
    "etype": [0, 1, 0],
    "rel": ["needs", "suggests"],
    "y": [0, 1, 1],
    "tf_ptr": [0, 2, 2, 3],
    "tf_idx": [65_535, 3, 8],
    "tf_val": np.array([0.6, 0.8, 1], np.float16),
}


def save(folder: Path, arrays: dict[str, Any]) -> Path:
    path = folder / "small.npz"
    given: dict[str, Any] = {
        key: np.array(value) for key, value in arrays.items() if value is not None
    }
    np.savez(path, **given)
    return path


def test_planetoid(tmp_path: Path) -> None:
    source = from_npz(save(tmp_path, PLANETOID), 0)
    check(source)
    nodes = source.nodes[0]
    assert source.name == "small"
    assert nodes.columns[0].read(0, 3).tolist() == [[0, 2], [3, 0], [0, 0]]
    assert nodes.columns[1].read(0, 3).tolist() == [0, 1, 1]
    assert {name: ids.tolist() for name, ids in nodes.splits.items()} == {"train": [0], "test": [2]}


def test_benchmark_graphs_are_binary_and_undirected(tmp_path: Path) -> None:
    source = from_npz(save(tmp_path, BENCHMARK), 0)
    check(source)
    assert source.nodes[0].columns[0].read(0, 3).tolist() == [[0, 1], [1, 0], [0, 0]]
    ((src, dst),) = source.edges[0].chunks()
    assert (src.tolist(), dst.tolist()) == ([0, 0, 1, 2], [1, 2, 0, 0])
    assert sum(len(ids) for ids in source.nodes[0].splits.values()) == 3


def test_undirected_of_nothing_is_nothing() -> None:
    src, dst = undirected(np.array([1]), np.array([1]), 3)
    assert (src.size, dst.size) == (0, 0)


def test_typed_graphs_have_reverse_relations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planetoid, "PROJECTED_WIDTH", 8)
    path = save(tmp_path, TYPED)
    source = from_npz(path, 0)
    check(source)
    assert [table.edge_type[1] for table in source.edges] == [
        "needs",
        "rev_needs",
        "suggests",
        "rev_suggests",
    ]
    pairs = {
        table.edge_type[1]: [(s.tolist(), d.tolist()) for s, d in table.chunks()]
        for table in source.edges
    }
    assert pairs["needs"] == [([0, 2], [1, 0])]
    assert pairs["rev_suggests"] == [([2], [1])]
    x = source.nodes[0].columns[0].read(0, 3)
    assert x.shape == (3, 8)
    assert not x[1].any()
    assert np.array_equal(from_npz(path, 0).nodes[0].columns[0].read(0, 3), x)
    assert not np.array_equal(from_npz(path, 1).nodes[0].columns[0].read(0, 3), x)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"a": [1]}, "has the arrays a, which is not a supported layout"),
        (PLANETOID | {"y": None}, "lacks y"),
        (PLANETOID | {"x_indptr": [0, 1, 2]}, "2 rows for 3 labels"),
        (PLANETOID | {"x_indices": [1, 9]}, "outside its 2 columns"),
        (PLANETOID | {"train_mask": [True]}, "train mask .* has 1 rows"),
        (PLANETOID | {"edge_index": [[0, 1], [1, 7]]}, "node 7"),
        (PLANETOID | {"x_data": [np.nan, 1.0]}, "nan in row 0"),
        (BENCHMARK | {"labels": None}, "lacks labels"),
        (BENCHMARK | {"adj_indices": [1, 1, 3]}, "ids outside 3 nodes"),
        (BENCHMARK | {"adj_indptr": [0, 1, 3]}, "adj_indptr"),
        (TYPED | {"rel": None}, "lacks rel"),
        (TYPED | {"tf_ptr": [0, 3]}, "does not fit its 3 labels"),
        (TYPED | {"tf_idx": [70_000, 3, 8]}, "outside its 65536 columns"),
        (TYPED | {"dst": [1, 2, -1]}, "node -1"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        check(from_npz(save(tmp_path, arrays), 0))
