"""Merge the sub-batches of several samplers into one batch, all seeds first.

As in DistDGL, sub-batches are not deduplicated: a node sampled by two samplers has two rows.
Finding duplicates would cost more than it saves, since samplers work on different clusters of the
graph. Nodes and edges are grouped by hop, then by sub-batch, so that PyG's `trim_to_layer` works on
a merged batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.kernels.gathering import shift_rows
from headrace.graph.sampler_worker.channels.shm import Held
from headrace.graph.sampler_worker.channels.sub_batch import Key, SubBatch, arrays_in, place

Allocate = Callable[[int], np.ndarray]


class Blocks:
    """Pool of memory for merged batches; new memory costs a page fault per 4 KB."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []

    def __call__(self, num_bytes: int) -> np.ndarray:
        """Allocate memory, `uint8`; returned to the pool with the last array of the batch."""
        block = self._free.pop() if self._free else np.empty(0, np.uint8)
        if len(block) < num_bytes:
            block = np.empty(num_bytes + num_bytes // 8, np.uint8)
        held = Held(block)
        weakref.finalize(held, self._free.append, block).atexit = False
        return np.asarray(held)[:num_bytes]


def _new(num_bytes: int) -> np.ndarray:
    return np.empty(num_bytes, np.uint8)


def merge(sub_batches: Sequence[SubBatch], allocate: Allocate = _new) -> SubBatch:
    """Merge the sub-batches of all samplers, in order; a single one is not copied."""
    first = sub_batches[0]
    if len(sub_batches) == 1:
        return first
    for sub_batch in sub_batches:
        _check(first, sub_batch)
    nodes = {
        name: np.array([each.num_sampled_nodes[name] for each in sub_batches], np.int64)
        for name in first.num_sampled_nodes
    }
    edges = {
        edge_type: np.array([each.num_sampled_edges[edge_type] for each in sub_batches], np.int64)
        for edge_type in first.num_sampled_edges
    }
    figures: dict[str, float] = {}
    for sub_batch in sub_batches:
        for name, value in sub_batch.figures.items():
            figures[name] = figures.get(name, 0.0) + value
    num_nodes = {name: counts.sum(0).tolist() for name, counts in nodes.items()}
    num_edges = {edge_type: counts.sum(0).tolist() for edge_type, counts in edges.items()}
    placed, num_bytes = place({key: _shape(key, sub_batches) for key in first.arrays})
    arrays = arrays_in(allocate(num_bytes), placed)
    for key, out in arrays.items():
        _join(key, [sub_batch.arrays[key] for sub_batch in sub_batches], nodes, edges, out)
    return SubBatch(first.epoch, first.batch, num_nodes, num_edges, arrays, figures)


def _shape(key: Key, sub_batches: Sequence[SubBatch]) -> tuple[int, ...]:
    axis = 1 if key.kind == "ends" else 0
    shape = list(sub_batches[0].arrays[key].shape)
    shape[axis] = sum(sub_batch.arrays[key].shape[axis] for sub_batch in sub_batches)
    return tuple(shape)


def _join(
    key: Key,
    arrays: list[np.ndarray],
    nodes: dict[str, np.ndarray],
    edges: dict[tuple[str, str, str], np.ndarray],
    out: np.ndarray,
) -> None:
    if key.kind == "ends":
        assert not isinstance(key.of, str)
        source, _, destination = key.of
        _join_ends(arrays, edges[key.of], nodes[source], nodes[destination], out)
        return
    if key.kind == "seed":
        np.concatenate(arrays, out=out)
        return
    if key.kind == "tree":
        # Only one node type has seeds; its first counts are the trees of each sub-batch.
        seeds = np.max([counts[:, 0] for counts in nodes.values()], axis=0)
        arrays = [a + b for a, b in zip(arrays, _before(seeds), strict=True)]
    counts = nodes[key.of] if isinstance(key.of, str) else edges[key.of]
    for p, begins, targets in _runs(counts):
        for begin, target, num in zip(begins, targets, counts[p], strict=True):
            out[target : target + num] = arrays[p][begin : begin + num]


def _join_ends(
    arrays: list[np.ndarray],
    counts: np.ndarray,
    sources: np.ndarray,
    destinations: np.ndarray,
    out: np.ndarray,
) -> None:
    runs = [list(_runs(sources)), list(_runs(destinations))]
    for p, begins, targets in _runs(counts):
        for begin, target, num in zip(begins, targets, counts[p], strict=True):
            for end in range(2):
                _, first_rows, target_rows = runs[end][p]
                ends = first_rows + (sources, destinations)[end][p]
                shift_rows(
                    arrays[p][end, begin : begin + num], ends, target_rows - first_rows,
                    out[end, target : target + num],
                )  # fmt: skip


def _runs(counts: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Per sub-batch, where the rows of each hop begin in it and in the merged batch."""
    whole = _before(counts.sum(0))
    return [(p, _before(counts[p]), whole + counts[:p].sum(0)) for p in range(len(counts))]


def _before(counts: np.ndarray) -> np.ndarray:
    sums: np.ndarray = np.cumsum(counts) - counts
    return sums


def _check(first: SubBatch, other: SubBatch) -> None:
    if (first.epoch, first.batch) != (other.epoch, other.batch):
        raise SpecError(
            f"batch {first.batch} of epoch {first.epoch} has a sub-batch of batch {other.batch} of "
            f"epoch {other.epoch}",
            "configure all samplers with the same number of batches",
        )
    if first.arrays.keys() != other.arrays.keys():
        raise SpecError(
            f"samplers sent different arrays for batch {first.batch}",
            "configure all samplers with the same graph and columns",
        )
