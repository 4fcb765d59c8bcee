from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.schema import GraphSource
from headrace.graph.sources.arrays import (
    both_ways,
    edge_table,
    from_arrays,
    node_table,
    random_splits,
)
from headrace.graph.sources.validate import check

EDGES = np.array([[0, 1, 2], [1, 2, 0]])


def features(*, rows: int = 3, bad: float | None = None) -> np.ndarray:
    x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    if bad is not None:
        x[1, 1] = bad
    return x


def test_a_graph_of_arrays_shares_their_memory() -> None:
    x = features()
    masks = {"train": np.array([True, False, True]), "val": np.zeros(3, bool)}
    source = from_arrays(
        EDGES,
        x=x,
        y=np.array([0, 1, 0]),
        masks=masks,
        edge_columns={"edge_weight": np.ones(3, np.float32)},
        name="triangle",
    )
    assert (source.name, source.num_nodes, source.num_edges) == ("triangle", 3, 3)
    nodes, edges = source.nodes[0], source.edges[0]
    assert nodes.name == "node"
    assert edges.edge_type == ("node", "to", "node")
    assert [column.name for column in nodes.columns] == ["x", "y"]
    assert np.shares_memory(nodes.columns[0].read(1, 3), x)
    assert nodes.splits["train"].tolist() == [0, 2]
    assert nodes.splits["val"].tolist() == []
    (src, dst), *rest = edges.chunks()
    assert not rest
    assert np.array_equal(np.stack([src, dst]), EDGES)
    assert edges.columns[0].read(0, 3).tolist() == [1, 1, 1]


def test_nodes_may_have_no_values() -> None:
    assert from_arrays(EDGES, num_nodes=5).num_nodes == 5


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"edge_index": np.array([[0, 1], [1, 3]])}, "row 1 of the destination .* node 3"),
        ({"edge_index": np.array([[0, -1], [1, 2]])}, "row 1 of the source .* node -1"),
        ({"edge_index": np.array([[0.0, 1.0], [1.0, 2.0]])}, "ids of type float64"),
        ({"edge_index": np.array([0, 1])}, r"shape \(2,\)"),
        ({"x": features(bad=np.nan)}, "column x of node nodes is nan in row 1, entry 1"),
        ({"x": features(bad=np.inf)}, "column x of node nodes is inf in row 1, entry 1"),
        ({"y": np.array([0.0, np.nan, 1.0])}, "column y of node nodes is nan in row 1"),
        ({"x": features(rows=2), "num_nodes": 3}, "x of node nodes has 2 rows, not 3"),
        ({"x": features().astype(complex)}, "column x of node nodes has type complex128"),
        ({"x": features().astype(str)}, "column x of node nodes has type <U"),
        ({"x": np.float32(1.0)}, "x of node nodes is a scalar"),
        ({"y": np.array([0, 1])}, "y of node nodes has 2 rows"),
        ({"masks": {"train": np.ones(2, bool)}}, "train mask .* has 2 rows, not 3"),
        ({"masks": {"train": np.ones(3, int)}}, "train mask of node nodes is int64"),
        ({"masks": {"train": np.ones((3, 10), bool)}}, "choose one column"),
        ({"masks": {"dev": np.ones(3, bool)}}, "split dev.* train, val, test"),
        ({"edge_columns": {"w": np.ones(2)}}, "w of node-to-node edges has 2 rows, not 3"),
        ({"node_columns": {"time": np.ones(4)}}, "time of node nodes has 4 rows"),
        ({"x": None, "num_nodes": 0, "edge_index": np.empty((2, 0), int)}, "has no nodes"),
        ({"x": None}, "give num_nodes"),
    ],
)
def test_wrong_arrays_are_named(fields: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"edge_index": EDGES, "x": features(), "num_nodes": None} | fields
    if given["num_nodes"] is None and isinstance(given["x"], np.float32):
        given["num_nodes"] = 3
    with pytest.raises(SpecError, match=said):
        from_arrays(**given)


def test_reverse_relations_swap_ends_and_keep_columns() -> None:
    writes = edge_table(
        ("author", "writes", "paper"),
        np.array([0, 1]),
        np.array([2, 0]),
        {"time": np.array([5, 6])},
    )
    tables = both_ways((writes,))
    assert tables[1].edge_type == ("paper", "rev_writes", "author")
    assert [(s.tolist(), d.tolist()) for s, d in tables[1].chunks()] == [([2, 0], [0, 1])]
    assert tables[1].columns[0].read(0, 2).tolist() == [5, 6]
    check(GraphSource("g", (node_table("author", 2), node_table("paper", 3)), tables))


def test_random_splits_are_disjoint_complete_and_repeatable() -> None:
    ids = np.arange(0, 202, 2)
    splits = random_splits(ids, (0.6, 0.2, 0.2), 7)
    assert [len(splits[name]) for name in ("train", "val", "test")] == [61, 20, 20]
    assert np.array_equal(np.sort(np.concatenate(list(splits.values()))), ids)
    again = random_splits(ids, (0.6, 0.2, 0.2), 7)
    assert all(np.array_equal(splits[name], again[name]) for name in splits)
    other = random_splits(ids, (0.6, 0.2, 0.2), 8)
    assert not np.array_equal(splits["train"], other["train"])
