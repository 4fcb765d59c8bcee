from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.schema import Column, GraphSource, LinkTable, NodeTable
from headrace.graph.sources import validate
from headrace.graph.sources.arrays import edge_table, node_table
from headrace.graph.sources.validate import check, checked

CITES = ("paper", "cites", "paper")


def graph(**changes: object) -> GraphSource:
    papers = node_table("paper", 4, {"x": np.ones((4, 2), np.float32)})
    edges = edge_table(CITES, np.array([0, 1, 2]), np.array([1, 2, 3]))
    fields: dict[str, object] = {"name": "g", "nodes": (papers,), "edges": (edges,)}
    return GraphSource(**(fields | changes))  # type: ignore[arg-type]


def test_a_good_graph_passes_and_reads_the_same() -> None:
    source = graph(links=(LinkTable("test", CITES, np.array([3]), np.array([0])),))
    check(source)
    good = checked(source)
    assert np.array_equal(good.nodes[0].columns[0].read(1, 3), np.ones((2, 2)))
    assert [src.tolist() for src, _ in good.edges[0].chunks()] == [[0, 1, 2]]


def test_columns_are_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[tuple[int, int]] = []

    def read(start: int, stop: int) -> np.ndarray:
        reads.append((start, stop))
        return np.zeros((stop - start, 2), np.float32)

    monkeypatch.setattr(validate, "CHUNK_BYTES", 24)
    column = Column("x", np.dtype(np.float32), (2,), read)
    check(graph(nodes=(NodeTable("paper", 4, (column,)),)))
    assert reads == [(0, 3), (3, 4)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": (NodeTable("paper", 0),)}, "g has no nodes"),
        ({"nodes": (NodeTable("paper", 4), NodeTable("paper", 4))}, "the node type paper twice"),
        ({"nodes": (NodeTable("author", 4),)}, "refers to node type paper"),
        ({"edges": graph().edges * 2}, "the edge type paper-cites-paper twice"),
        (
            {"nodes": (replace(graph().nodes[0], columns=graph().nodes[0].columns * 2),)},
            "paper has the column x twice",
        ),
        (
            {"links": (LinkTable("test", CITES, np.array([4]), np.array([0])),)},
            "source .* is node 4",
        ),
        (
            {"links": (LinkTable("dev", CITES, np.array([1]), np.array([0])),)},
            "split dev",
        ),
        (
            {"links": (LinkTable("val", CITES, np.array([1]), np.array([0, 1])),)},
            "1 sources and 2 destinations",
        ),
        (
            {"links": (LinkTable("val", ("a", "b", "c"), np.array([1]), np.array([0])),)},
            "refers to node type a",
        ),
        (
            {"nodes": (NodeTable("paper", 4, (), {"train": np.array([0, 4])}),)},
            "row 1 of the train split of paper is node 4",
        ),
        (
            {"nodes": (NodeTable("paper", 4, (), {"train": np.array([2, 1])}),)},
            "not ascending",
        ),
        (
            {"nodes": (NodeTable("paper", 4, (), {"train": np.array([1, 1])}),)},
            "has duplicates",
        ),
        (
            {"nodes": (NodeTable("paper", 4, (), {"train": np.array([1.0])}),)},
            "ids of type float64",
        ),
        ({"edges": (replace(graph().edges[0], num_edges=5),)}, "3 paper-cites-paper edges, but 5"),
        (
            {
                "edges": (
                    replace(
                        graph().edges[0], chunks=lambda: iter([(np.array([0]), np.array([0, 1]))])
                    ),
                )
            },
            "1 sources and 2 destinations",
        ),
        (
            {"nodes": (NodeTable("paper", 5, graph().nodes[0].columns),)},
            r"returned float32 \(4, 2\) for rows 0 to 5",
        ),
    ],
)
def test_wrong_tables_are_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        check(graph(**changes))


def test_the_row_of_a_late_mistake_counts_from_the_start() -> None:
    chunks = [(np.array([0, 1]), np.array([1, 2])), (np.array([2]), np.array([9]))]
    edges = replace(graph().edges[0], chunks=lambda: iter(chunks))
    with pytest.raises(SpecError, match=r"row 2 of the destination .* node 9"):
        check(graph(edges=(edges,)))


def test_large_things_are_tested_only_when_read() -> None:
    bad = node_table("paper", 4, {"x": np.full(4, np.nan)})
    good = checked(graph(nodes=(bad,)))
    with pytest.raises(SpecError, match="is nan in row 2"):
        good.nodes[0].columns[0].read(2, 3)
