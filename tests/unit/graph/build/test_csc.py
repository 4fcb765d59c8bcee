"""Neighbour lists from tables: what they hold, what is refused, what is reused and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.build.csc import build_adjacency, build_csc, open_adjacency, open_csc
from headrace.graph.schema import EdgeTable, GraphSource, NodeTable

TO = ("node", "to", "node")


def table_of(pairs: list[tuple[int, int]], *, keep_ids: bool = True, chunk: int = 3) -> EdgeTable:
    ends = np.array(pairs, np.int64).reshape(-1, 2)

    def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(ends), chunk):
            yield ends[start : start + chunk, 0], ends[start : start + chunk, 1]

    return EdgeTable(TO, len(ends), chunks, keep_ids=keep_ids)


def graph_of(pairs: list[tuple[int, int]], num_nodes: int) -> GraphSource:
    return GraphSource("test", (NodeTable("node", num_nodes),), (table_of(pairs),))


def test_lists_are_sorted_by_source_then_row(tmp_path: Path) -> None:
    csc = build_csc(table_of([(2, 0), (1, 3), (0, 0), (2, 0), (3, 3)]), 4, 4, tmp_path)
    assert csc.indptr.tolist() == [0, 3, 3, 3, 5]
    assert csc.indices.tolist() == [0, 2, 2, 1, 3]
    assert csc.indices.dtype == np.int32
    assert csc.edge_ids is not None
    assert csc.edge_ids.tolist() == [2, 0, 3, 1, 4]
    assert csc.edge_ids.dtype == np.uint32


def test_without_ids_none_are_written(tmp_path: Path) -> None:
    assert build_csc(table_of([(0, 1)], keep_ids=False), 2, 2, tmp_path).edge_ids is None
    assert not (tmp_path / "ids.bin").exists()


@pytest.mark.parametrize("num_nodes", [0, 3])
def test_a_type_may_have_no_edges(tmp_path: Path, num_nodes: int) -> None:
    csc = build_csc(table_of([]), num_nodes, num_nodes, tmp_path / "csc")
    assert csc.indptr.tolist() == [0] * (num_nodes + 1)
    assert len(csc.indices) == 0
    adjacency = build_adjacency(graph_of([], num_nodes), [csc], tmp_path / "adjacency")
    assert adjacency.num_nodes == num_nodes
    assert adjacency.num_arcs == 0


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ((4, 0), "row 4 of node-to-node has source 4, but there are 3"),
        ((0, 5), "destination 5, but there are 4"),
        ((-1, 0), "source -1"),
        ((0, -7), "destination -7"),
    ],
)
def test_a_dangling_edge_is_named(tmp_path: Path, pair: tuple[int, int], words: str) -> None:
    table = table_of([(0, 0)] * 4 + [pair, (9, 9)])
    with pytest.raises(SpecError, match="dangling edge") as error:
        build_csc(table, 3, 4, tmp_path)
    assert words in str(error.value)
    with pytest.raises(SpecError, match=r"no csc\.json"):
        open_csc(tmp_path)


def test_a_table_keeps_its_word_about_its_length(tmp_path: Path) -> None:
    table = table_of([(0, 1), (1, 0)])
    with pytest.raises(SpecError, match="declares 3 edges, but 2 were read"):
        build_csc(EdgeTable(TO, 3, table.chunks), 2, 2, tmp_path)


def test_a_table_that_changes_between_passes_is_refused(tmp_path: Path) -> None:
    versions = iter([[(0, 1), (1, 0)], [(0, 1), (1, 1)]])
    table = EdgeTable(TO, 2, lambda: table_of(next(versions)).chunks())
    with pytest.raises(SpecError, match="changed between two reads"):
        build_csc(table, 2, 2, tmp_path)


def test_an_undirected_graph_is_not_copied(tmp_path: Path) -> None:
    pairs = [(0, 1), (1, 0), (2, 0), (0, 2)]
    csc = build_csc(table_of(pairs), 3, 3, tmp_path / "csc")
    adjacency = build_adjacency(graph_of(pairs, 3), [csc], tmp_path / "adjacency")
    assert adjacency.indices is csc.indices
    assert adjacency.weights is None
    assert not (tmp_path / "adjacency").exists()


@pytest.mark.parametrize(
    ("pairs", "weights"),
    [
        ([(0, 1), (1, 0), (2, 0)], [2, 1, 2, 1]),  # one direction is missing
        ([(0, 1), (0, 2)], None),  # all are
        ([(0, 1), (1, 0), (2, 0), (0, 2), (1, 1)], None),  # a loop
        ([(0, 1), (1, 0), (2, 0), (0, 2), (0, 2)], [2, 3, 2, 3]),  # a parallel edge
    ],
)
def test_any_other_graph_is_made_undirected(
    tmp_path: Path, pairs: list[tuple[int, int]], weights: list[int] | None
) -> None:
    csc = build_csc(table_of(pairs), 3, 3, tmp_path / "csc")
    adjacency = build_adjacency(graph_of(pairs, 3), [csc], tmp_path / "adjacency")
    assert adjacency.indptr.tolist() == [0, 2, 3, 4]
    assert adjacency.indices.tolist() == [1, 2, 0, 0]
    assert (None if adjacency.weights is None else adjacency.weights.tolist()) == weights


def test_finished_lists_open_again_and_unfinished_ones_do_not(tmp_path: Path) -> None:
    pairs = [(0, 1), (2, 1), (2, 0)]
    csc = build_csc(table_of(pairs), 3, 3, tmp_path / "csc")
    again = open_csc(tmp_path / "csc")
    assert again.indices.tolist() == csc.indices.tolist()
    assert not again.indices.flags.writeable
    adjacency = build_adjacency(graph_of(pairs, 3), [again], tmp_path / "adjacency")
    mapped = open_adjacency(tmp_path / "adjacency")
    assert mapped.indptr.tolist() == adjacency.indptr.tolist()
    (tmp_path / "adjacency" / "adjacency.json").unlink()
    with pytest.raises(SpecError, match=r"no adjacency\.json"):
        open_adjacency(tmp_path / "adjacency")
