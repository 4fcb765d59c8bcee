from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.kernels.gathering import shift_rows
from headrace.graph.sampler_worker.channels.sub_batch import (
    Key,
    SubBatch,
    arrays_in,
    from_fields,
    place,
    to_fields,
)
from headrace.graph.sampler_worker.merge import Blocks, merge

PAPERS, AUTHORS = "paper", "author"
WRITES = (AUTHORS, "writes", PAPERS)
CITES = (PAPERS, "cites", PAPERS)
N_ID, X = Key(PAPERS, "n_id", "node", "int64"), Key(PAPERS, "x", "node", "float32")
Y, TREE = Key(PAPERS, "y", "seed", "int64"), Key(PAPERS, "batch", "tree", "int64")
AUTHOR_ID = Key(AUTHORS, "n_id", "node", "int64")
WRITES_ENDS, CITES_ENDS = (
    Key(WRITES, "edge_index", "ends", "int64"),
    Key(CITES, "edge_index", "ends", "int64"),
)
WEIGHT = Key(CITES, "weight", "edge", "float32")


def random_part(seed: int, num_seeds: int) -> SubBatch:
    """A part with two hops, in which every edge ends in the hop before."""
    rng = np.random.default_rng(seed)
    papers = [num_seeds, *rng.integers(0, 6, 2).tolist()]
    authors = [0, *rng.integers(1, 6, 2).tolist()]
    paper_ends, author_ends = np.cumsum(papers), np.cumsum(authors)
    ends: dict[Key, list[np.ndarray]] = {WRITES_ENDS: [], CITES_ENDS: []}
    counts: dict[Key, list[int]] = {WRITES_ENDS: [], CITES_ENDS: []}
    for hop in range(2):
        low = 0 if hop == 0 else paper_ends[hop - 1]
        for key, known in ((WRITES_ENDS, author_ends), (CITES_ENDS, paper_ends)):
            num = int(rng.integers(1, 8)) if paper_ends[hop] > low and known[hop + 1] else 0
            col = rng.integers(low, max(paper_ends[hop], low + 1), num)
            ends[key].append(np.stack([rng.integers(0, max(known[hop + 1], 1), num), col]))
            counts[key].append(num)
    num_cites = sum(counts[CITES_ENDS])
    arrays = {
        N_ID: rng.integers(0, 99, paper_ends[-1]),
        X: rng.random((paper_ends[-1], 3), np.float32),
        Y: rng.integers(0, 5, num_seeds),
        TREE: rng.integers(0, max(num_seeds, 1), paper_ends[-1]),
        AUTHOR_ID: rng.integers(0, 99, author_ends[-1]),
        **{key: np.concatenate(runs, axis=1) for key, runs in ends.items()},
        WEIGHT: rng.random(num_cites, np.float32),
    }
    return SubBatch(
        0, 0, {PAPERS: papers, AUTHORS: authors},
        {WRITES: counts[WRITES_ENDS], CITES: counts[CITES_ENDS]}, arrays, {"sample_s": 1.0},
    )  # fmt: skip


def plain_rows(parts: list[SubBatch], node_type: str) -> dict[tuple[int, int], int]:
    """Row in the whole of every (part, row), listed the plain way."""
    order = []
    for hop in range(3):
        for p, part in enumerate(parts):
            counts = part.num_sampled_nodes[node_type]
            begin = sum(counts[:hop])
            order += [(p, row) for row in range(begin, begin + counts[hop])]
    return {key: i for i, key in enumerate(order)}


@pytest.mark.parametrize("num_parts", [2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_a_merged_batch_is_what_a_plain_listing_gives(num_parts: int, seed: int) -> None:
    parts = [random_part(10 * seed + p, num_seeds=p + seed % 2) for p in range(num_parts)]
    whole = merge(parts)
    rows = {name: plain_rows(parts, name) for name in (PAPERS, AUTHORS)}
    for key in (N_ID, X, AUTHOR_ID):
        for (p, row), at in rows[str(key.of)].items():
            assert np.array_equal(whole.arrays[key][at], parts[p].arrays[key][row])
    assert np.array_equal(whole.arrays[Y], np.concatenate([p.arrays[Y] for p in parts]))
    num_seeds = [part.num_sampled_nodes[PAPERS][0] for part in parts]
    for (p, row), at in rows[PAPERS].items():
        assert whole.arrays[TREE][at] == parts[p].arrays[TREE][row] + sum(num_seeds[:p])
    for key, source in ((WRITES_ENDS, AUTHORS), (CITES_ENDS, PAPERS)):
        expected, weights = [], []
        for hop in range(2):
            for p, part in enumerate(parts):
                counts = part.num_sampled_edges[key.of]  # type: ignore[index]
                for e in range(sum(counts[:hop]), sum(counts[: hop + 1])):
                    src, dst = part.arrays[key][:, e]
                    expected.append((rows[source][p, src], rows[PAPERS][p, dst]))
                    weights.append(part.arrays[WEIGHT][e] if key == CITES_ENDS else 0)
        assert list(zip(*whole.arrays[key].tolist(), strict=True)) == expected
        if key == CITES_ENDS:
            assert whole.arrays[WEIGHT].tolist() == weights
    assert whole.num_sampled_nodes[PAPERS] == [
        sum(part.num_sampled_nodes[PAPERS][hop] for part in parts) for hop in range(3)
    ]
    assert whole.figures == {"sample_s": float(num_parts)}


def test_memory_of_a_merged_batch_is_used_again() -> None:
    parts, blocks = [random_part(p, 3) for p in range(2)], Blocks()
    first = merge(parts, blocks)
    kept = first.arrays[X]
    address, values = first.arrays[N_ID].ctypes.data, kept.copy()
    del first
    second = merge(parts[::-1], blocks)
    assert second.arrays[N_ID].ctypes.data != address
    assert np.array_equal(kept, values)
    del kept
    assert merge(parts, blocks).arrays[N_ID].ctypes.data == address


def test_a_single_part_is_not_copied() -> None:
    part = random_part(0, 4)
    assert merge([part]) is part


def test_parts_of_different_batches_do_not_mix() -> None:
    part = random_part(0, 4)
    with pytest.raises(SpecError, match="batch 0 of epoch 0 has a sub-batch of batch 1"):
        merge([part, dataclasses.replace(part, batch=1)])
    with pytest.raises(SpecError, match="different arrays"):
        merge([part, dataclasses.replace(part, arrays={})])


def test_kernel_and_plain_twin_move_rows_alike() -> None:
    rng = np.random.default_rng(0)
    ends, shifts = np.array([3, 3, 10, 12]), np.array([5, 100, 7, 0])
    rows = rng.integers(0, 12, 200)
    out = np.empty_like(rows)
    shift_rows(rows, ends, shifts, out)
    assert out.tolist() == [r + shifts[next(h for h in range(4) if r < ends[h])] for r in rows]


def test_a_part_comes_back_from_memory() -> None:
    part = random_part(3, 4)
    placed, num_bytes = place({key: array.shape for key, array in part.arrays.items()})
    memory = np.zeros(num_bytes, np.uint8)
    for key, view in arrays_in(memory, placed).items():
        view[...] = part.arrays[key]
    back = from_fields(to_fields(part, placed), memory)
    assert back.num_sampled_nodes == part.num_sampled_nodes
    assert back.num_sampled_edges == part.num_sampled_edges
    for key, array in part.arrays.items():
        assert np.array_equal(back.arrays[key], array)
        assert back.arrays[key].ctypes.data % 16 == memory.ctypes.data % 16
