"""Opening maps files when they are asked for and copies nothing."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import MissingExtraError, SpecError
from headrace.graph.format.partitioned_graph import as_tensor, open_graph
from tests.unit.graph.small_graphs import NODE_TO_NODE, heterogeneous, homogeneous, write


def test_owner_is_the_part_whose_range_holds_the_id(tmp_path: Path) -> None:
    write(heterogeneous(), tmp_path, num_parts=12)
    graph = open_graph(tmp_path)
    for node_type in graph.node_types:
        offsets = graph.offsets(node_type).tolist()
        owners = graph.owner(node_type, np.arange(offsets[-1])).tolist()
        plain = [p for p in range(12) for _ in range(offsets[p], offsets[p + 1])]
        assert owners == plain


def test_nothing_is_mapped_before_it_is_asked_for(tmp_path: Path) -> None:
    write(homogeneous(), tmp_path)
    (tmp_path / "part-1" / "node-0" / "x.bin").unlink()
    graph = open_graph(tmp_path)
    assert graph.part(0).column("node", "x").shape == (graph.part(0).num_nodes("node"), 5)
    with pytest.raises(SpecError, match=r"part-1/node-0/x.bin is missing"):
        graph.part(1).column("node", "x")


def test_arrays_are_mapped_once_and_cannot_be_changed(tmp_path: Path) -> None:
    write(homogeneous(), tmp_path)
    part = open_graph(tmp_path).part(0)
    assert part.column("node", "x") is part.column("node", "x")
    with pytest.raises(ValueError, match="read-only"):
        part.column("node", "x")[0] = 0


def test_whoever_finds_no_graph_says_where_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path, there in (
        ("parts", f"there is no {tmp_path}/parts"),
        (f"{tmp_path}/parts", "there is no such directory"),
        ("file", "it is a file"),
        ("folder", "it has no manifest.json"),
    ):
        with pytest.raises(
            SpecError, match=f"^{path} is not a partitioned graph, {there}: create one"
        ):
            open_graph(path)


def test_a_tensor_shares_the_mapped_pages(tmp_path: Path) -> None:
    write(heterogeneous(), tmp_path)
    part = open_graph(tmp_path).part(0)
    for node_type, name in (("paper", "x"), ("author", "is_dr")):
        array, tensor = part.column(node_type, name), part.tensor(node_type, name)
        assert tensor.data_ptr() == array.ctypes.data
        np.testing.assert_array_equal(tensor.numpy(), array)
    assert as_tensor(np.empty((0, 4), np.float32)).shape == (0, 4)


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtraError, match="torch is not installed"):
        as_tensor(np.zeros(1))


def test_a_graph_is_sent_to_another_process_as_its_path(tmp_path: Path) -> None:
    write(homogeneous(num_nodes=500), tmp_path)
    graph = open_graph(tmp_path)
    column = graph.part(2).column("node", "x")
    sent = pickle.dumps(graph)
    assert len(sent) < 1000
    np.testing.assert_array_equal(pickle.loads(sent).part(2).column("node", "x"), column)


def test_counts_are_in_the_manifest(tmp_path: Path) -> None:
    write(homogeneous(), tmp_path)
    graph = open_graph(tmp_path)
    parts = [graph.part(number) for number in range(3)]
    assert graph.num_nodes_of("node") == sum(part.num_nodes("node") for part in parts) == 30
    assert graph.num_edges_of(NODE_TO_NODE) == sum(part.num_edges(NODE_TO_NODE) for part in parts)
    counts = graph.manifest.nodes[0].splits["train"]
    assert counts == tuple(len(part.split("node", "train")) for part in parts)
    assert repr(parts[1]) == f"<part 1 of <small in 3 parts at {tmp_path}>>"


def test_what_is_not_there(tmp_path: Path) -> None:
    write(heterogeneous(), tmp_path)
    graph = open_graph(tmp_path)
    writes = ("author", "writes", "paper")
    for wrong, message in (
        (lambda: graph.part(3), "there is no graph partition 3, the graph has 3: use 0 to 2"),
        (lambda: graph.offsets("book"), "no nodes of type 'book': use one of paper, author"),
        (lambda: graph.num_edges_of(("a", "b", "c")), "use one of author writes paper"),
        (lambda: graph.part(0).column("paper", "y"), "have no column 'y': they have x"),
        (lambda: graph.part(0).edge_column(writes, "w"), "have no column 'w': they have time"),
        (lambda: graph.part(0).split("paper", "val"), "no split 'val': they have train"),
        (lambda: graph.part(0).split("venue", "val"), "they have none"),
        (lambda: graph.links("val", writes), "no val links"),
        (lambda: graph.to_new("paper", np.array([20])), "there are 20 nodes: use 0 to 19"),
        (lambda: graph.to_original("paper", np.array([-1])), "there are 20 nodes"),
    ):
        with pytest.raises(SpecError, match=message):
            wrong()
