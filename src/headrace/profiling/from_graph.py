"""Growth of sub-batches from batches sampled from a partitioned graph, without a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headrace.core.errors import SpecError
from headrace.core.growth import Growth, Quantity
from headrace.graph.format.manifest import ColumnInfo, SplitName
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.sampling.hop import Hop, HopRequest, LocalSource, Rule
from headrace.graph.sampling.local_edges import open_edge_parts
from headrace.graph.sampling.neighbor_sampler import BatchKey, FanOuts, HeteroSampled, Sampler

_STEP = 4
"""Quotient of two sampled sizes."""

_NUM_DRAWS = 8
"""Batches of the largest size; smaller ones are their slices."""

_QUANTITIES: tuple[Quantity, ...] = ("nodes", "edges", "store_bytes", "batch_bytes")


def sample_growth(
    graph: PartitionedGraph,
    num_neighbors: FanOuts,
    seeds_per_sampler: float,
    *,
    split: SplitName = "train",
    edge_ids: bool = False,
    seed: int = 0,
) -> Growth:
    """Sample batches of three sizes and count their nodes, edges and bytes.

    The middle size is that of a sub-batch, unless the split has too few seeds. Bytes are those of
    feature rows, sampled ids and labels, without protocol overhead.

    Args:
        graph: The partitioned graph.
        num_neighbors: Neighbours per hop, as in a loader.
        seeds_per_sampler: Seeds of a sub-batch.
        split: Split of the seeds.
        edge_ids: Whether the loader requests edge ids.
        seed: Random seed.

    Raises:
        SpecError: The graph has too few seeds in this split.
    """
    _, seeds = split_seeds(graph, split)
    largest = min(len(seeds), max(_STEP**2, round(seeds_per_sampler * _STEP)))
    sizes = sorted({max(1, largest // _STEP**power) for power in range(3)})
    if len(sizes) < 2:
        raise SpecError(
            f"the graph has {len(seeds)} {split} seeds, too few for batches of several sizes",
            "use a graph with more seeds, or profile a run",
        )
    means = sample_batches(graph, num_neighbors, sizes, split=split, edge_ids=edge_ids, seed=seed)
    measured = {name: tuple(values) for name, values in means.items() if min(values) > 0}
    return Growth(seeds=tuple(map(float, sizes)), **measured)


def sample_batches(
    graph: PartitionedGraph,
    num_neighbors: FanOuts,
    sizes: Sequence[int],
    *,
    num_draws: int = _NUM_DRAWS,
    split: SplitName = "train",
    edge_ids: bool = False,
    seed: int = 0,
) -> dict[Quantity, list[float]]:
    """Means of nodes, edges and bytes of a batch, for each size in seeds.

    `num_draws` batches of the largest size are drawn; smaller batches are their slices.
    """
    name, seeds = split_seeds(graph, split)
    source = _MeteredSource(LocalSource(open_edge_parts(graph)))
    num_nodes = {each: graph.num_nodes_of(each) for each in graph.node_types}
    sampler = Sampler(source, num_nodes, graph.edge_types, Rule(edge_ids=edge_ids))
    sums, counts = np.zeros((len(_QUANTITIES), len(sizes))), np.zeros(len(sizes))
    rng = np.random.default_rng(seed)
    for draw in range(num_draws):
        chosen = rng.choice(seeds, max(sizes), replace=False)
        for i, size in enumerate(sizes):
            for batch in range(max(sizes) // size):
                own = chosen[batch * size : (batch + 1) * size]
                source.num_bytes = 0
                out = sampler.sample_hetero({name: own}, num_neighbors, BatchKey(seed, draw, batch))
                sums[:, i] += _count(graph, name, out, source.num_bytes)
                counts[i] += 1
    return dict(zip(_QUANTITIES, (sums / counts).tolist(), strict=True))


class _MeteredSource:
    """Counts the bytes of sampled neighbours."""

    def __init__(self, source: LocalSource) -> None:
        self._source = source
        self.num_bytes = 0

    def hop(self, request: HopRequest) -> Hop:
        """Sample, and count the reply."""
        found = self._source.hop(request)
        self.num_bytes += sum(each.nbytes for each in (found.counts, found.neighbours, found.edges))
        return found


def split_seeds(graph: PartitionedGraph, split: SplitName) -> tuple[str, np.ndarray]:
    """Node type and new ids of the seeds of a split: of the first type that has splits."""
    for node in graph.manifest.nodes:
        if split in node.splits:
            ids = [
                graph.part(part).start(node.name) + graph.part(part).split(node.name, split)
                for part in range(graph.num_parts)
            ]
            return node.name, np.concatenate(ids).astype(np.int64)
    raise SpecError(
        f"the graph has no {split} split", "partition a graph with masks, or profile a run"
    )


def _count(
    graph: PartitionedGraph, name: str, out: HeteroSampled, hop_bytes: int
) -> Sequence[float]:
    """Nodes, edges, bytes from stores and bytes of the sub-batch."""
    num_nodes = {each: len(ids) for each, ids in out.node.items()}
    num_edges = sum(len(row) for row in out.row.values())
    num_seeds = out.num_sampled_nodes[name][0]
    rows = _row_bytes(graph, name, num_nodes, num_seeds)
    # Sub-batches have an original id per node, and two rows and perhaps an id per edge.
    per_edge = 16 if out.edge is None else 24
    batch_bytes = rows + 8 * sum(num_nodes.values()) + per_edge * num_edges
    return sum(num_nodes.values()), num_edges, rows + hop_bytes, batch_bytes


def _row_bytes(
    graph: PartitionedGraph, name: str, num_nodes: Mapping[str, int], num_seeds: int
) -> int:
    """Bytes of the features of all nodes and the labels of the seeds."""
    total = 0
    for node in graph.manifest.nodes:
        for column in node.columns:
            if column.shape:
                total += num_nodes[node.name] * _bytes_of(column)
            elif node.name == name:
                total += num_seeds * _bytes_of(column)
    return total


def _bytes_of(column: ColumnInfo) -> int:
    size = 2 if column.dtype == "bfloat16" else np.dtype(column.dtype).itemsize
    return size * int(np.prod(column.shape, dtype=np.int64))
