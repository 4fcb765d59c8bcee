from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from headrace.graph.kernels.id_table import add_up, place_runs, repeat_rows
from headrace.graph.sampling import id_table
from headrace.graph.sampling.id_table import DenseTable, HashTable, RowTable, table_for

NUM_IDS = 500


def relabel(table: RowTable, seeds: np.ndarray, hops: list[np.ndarray]) -> tuple[list[int], ...]:
    """Known ids and rows of all hops."""
    nodes = np.empty(len(seeds) + sum(map(len, hops)) + 1, np.int64)
    nodes[: len(seeds)] = seeds
    table.begin(seeds)
    num_nodes, found = len(seeds), []
    for ids in hops:
        rows = np.empty(len(ids), np.int64)
        num_nodes = table.rows(ids, nodes, num_nodes, rows)
        found += rows.tolist()
    return nodes[:num_nodes].tolist(), found


def twin(seeds: np.ndarray, hops: list[np.ndarray]) -> tuple[list[int], ...]:
    row_of: dict[int, int] = {}
    nodes, found = seeds.tolist(), []
    for row, node in enumerate(nodes):
        row_of.setdefault(node, row)
    for node in np.concatenate(hops).tolist():
        if node not in row_of:
            row_of[node] = len(nodes)
            nodes.append(node)
        found.append(row_of[node])
    return nodes, found


@pytest.mark.parametrize("make", [lambda: DenseTable(NUM_IDS), HashTable])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_rows_come_in_the_order_of_meeting(
    make: Callable[[], RowTable], dtype: type[np.integer]
) -> None:
    table = make()
    rng = np.random.default_rng(0)
    for size in (3, 40, 400, 0, 20):
        seeds = rng.integers(0, NUM_IDS, size)
        hops = [rng.integers(0, NUM_IDS, size * k).astype(dtype) for k in (1, 3)]
        assert relabel(table, seeds, hops) == twin(seeds, hops)


@pytest.mark.parametrize("make", [lambda: DenseTable(NUM_IDS), HashTable])
def test_a_table_lasts_longer_than_its_numbers(
    make: Callable[[], RowTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_table, "_LAST_BASE", 3 * NUM_IDS)
    table = make()
    rng = np.random.default_rng(1)
    for _ in range(20):
        seeds, more = rng.integers(0, NUM_IDS, 50), rng.integers(0, NUM_IDS, 200)
        assert relabel(table, seeds, [more]) == twin(seeds, [more])


def test_large_ids_find_their_slots() -> None:
    ids = np.array([0, 2**40, 2**40 + 2**20, 5 * 2**33, 2**40])
    assert relabel(HashTable(), ids[:1], [ids]) == twin(ids[:1], [ids])


def test_a_small_graph_has_the_faster_table() -> None:
    assert isinstance(table_for(100, 100), DenseTable)
    assert isinstance(table_for(101, 100), HashTable)


def test_runs() -> None:
    counts = np.array([2, 0, 3])
    slots = np.empty(4, np.int64)
    add_up(counts, slots)
    assert slots.tolist() == [0, 2, 2, 5]
    cols = np.empty(5, np.int64)
    repeat_rows(7, counts, cols)
    assert cols.tolist() == np.repeat([7, 8, 9], counts).tolist()
    out = np.zeros(5, np.int64)
    place_runs(np.array([2, 0]), np.array([3, 2]), np.array([5, 6, 7, 8, 9]), slots, out)
    assert out.tolist() == [8, 9, 5, 6, 7]
