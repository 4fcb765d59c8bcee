"""Traffic of a job from batches sampled from its partitioned graph, without a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.core.errors import SpecError
from headrace.core.growth import Growth, Quantity
from headrace.core.job import Job
from headrace.core.profile import Profile, StoreTraffic
from headrace.graph.format.manifest import SplitName
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.sampling.hop import Hop, HopRequest, LocalSource, Rule
from headrace.graph.sampling.local_edges import open_edge_parts
from headrace.graph.sampling.neighbor_sampler import BatchKey, FanOuts, HeteroSampled, Sampler
from headrace.profiling.samples import NOTHING_KNOWN

_STEP = 4
"""Quotient of two sampled sizes."""

FAN_OUTS = (10, 5)
"""Neighbours per hop to sample if those of the script's loader are not known."""

_NUM_DRAWS = 8
"""Batches of the largest size; smaller ones are their slices."""

_QUANTITIES: tuple[Quantity, ...] = ("nodes", "edges", "store_bytes", "batch_bytes")
_IN_PROFILE: tuple[Quantity, ...] = ("store_bytes", "batch_bytes")


def with_graph(
    profile: Profile,
    graph: PartitionedGraph,
    job: Job,
    num_neighbors: FanOuts | None = None,
    *,
    seed: int = 0,
) -> Profile:
    """A profile with the training seeds of each partition and sampled traffic.

    Bytes per seed, by partition of the seed and store, are those of batches whose seeds are from
    one partition. Entries of a measured profile are kept, except those that its run did not
    determine: these are sampled ones, scaled to what was measured. Seeds of one partition have more
    neighbours in common than uniform seeds, so their bytes are fewer than those of a uniform mix.

    Args:
        profile: The profile.
        graph: The partitioned graph.
        job: The job, for its seeds per sampler.
        num_neighbors: Neighbours per hop, as in the script's loader; `FAN_OUTS` by default.
        seed: Random seed of the samples.

    Raises:
        SpecError: The graph has no training seeds.
    """
    _, seeds = split_seeds(graph, "train")
    known = tuple(len(own) for own in seeds)
    if not sum(known):
        raise SpecError("the graph has no training nodes", "partition a graph with a train mask")
    profile = profile.model_copy(update={"version": 2, "part_seeds": known})
    if num_neighbors is None:
        num_neighbors = FAN_OUTS
    per_sampler = job.batch_size / job.samplers_per_trainer
    matrix = sample_matrix(graph, num_neighbors, per_sampler, seed=seed)
    growth = sample_growth(graph, num_neighbors, per_sampler, seed=seed)
    store_bytes, batch_bytes = (
        float(growth.values_at(name, per_sampler)) / per_sampler for name in _IN_PROFILE
    )
    profile = profile.model_copy(update={"growth": profile.growth or growth})
    # Bytes per seed of a profile hold for the same number of seeds as its times.
    store_ratio, batch_ratio = (
        float(profile.equivalent_seeds(name, np.array(per_sampler), job)) / per_sampler
        for name in _IN_PROFILE
    )
    matrix, store_bytes, batch_bytes = (
        matrix / store_ratio,
        store_bytes / store_ratio,
        batch_bytes / batch_ratio,
    )
    traffic, batches = profile.store_traffic, profile.batch_traffic
    errors: tuple[tuple[float, ...], ...] = ()
    if profile.source == "measured":
        matrix, errors = _completed(traffic, matrix, store_bytes, np.array(known) / sum(known))
    else:
        batches = batches.model_copy(update={"bytes_per_seed": batch_bytes})
    traffic = traffic.model_copy(
        update={
            "matrix": tuple(tuple(float(f"{value:.6g}") for value in row) for row in matrix),
            "bytes_per_seed": 0.0,
            "locality": 0.0,
            "relative_errors": errors,
        }
    )
    return profile.model_copy(
        update={
            "store_traffic": traffic,
            "batch_traffic": batches,
            "seeds_per_sampler": profile.nominal_seeds(job)[0],
        }
    )


def _completed(
    traffic: StoreTraffic, sampled: np.ndarray, store_bytes: float, weights: np.ndarray
) -> tuple[np.ndarray, tuple[tuple[float, ...], ...]]:
    """The measured matrix, with sampled entries where the run did not determine them, and errors.

    `store_bytes` are bytes per seed of sampled uniform batches. Requests and protocol overhead are
    part of what was measured.
    """
    measured = traffic.bytes_per_seed_matrix(len(sampled))
    # Equal rows are those of uniform seeds, which do not tell partitions apart.
    is_known = np.full(measured.shape, len(set(traffic.matrix)) > 1)
    if traffic.relative_errors:
        is_known = np.array(traffic.relative_errors) < NOTHING_KNOWN
    if sampled[is_known].sum() > 0:
        ratio = float(measured[is_known].sum() / sampled[is_known].sum())
    else:
        ratio = float(weights @ measured.sum(axis=1)) / store_bytes
    errors = np.where(is_known, traffic.relative_errors or 0.0, NOTHING_KNOWN)
    completed = np.where(is_known, measured, sampled * ratio)
    return completed, tuple(tuple(map(float, row)) for row in errors)


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
    num_seeds = sum(len(own) for own in seeds)
    largest = min(num_seeds, max(_STEP**2, round(seeds_per_sampler * _STEP)))
    sizes = sorted({max(1, largest // _STEP**power) for power in range(3)})
    if len(sizes) < 2:
        raise SpecError(
            f"the graph has {num_seeds} {split} seeds, too few for batches of several sizes",
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
    survey = _Survey(graph, num_neighbors, split, edge_ids, seed)
    seeds = np.concatenate(survey.seeds)
    sums, counts = np.zeros((len(_QUANTITIES), len(sizes))), np.zeros(len(sizes))
    rng = np.random.default_rng(seed)
    for draw in range(num_draws):
        chosen = rng.choice(seeds, max(sizes), replace=False)
        for i, size in enumerate(sizes):
            for batch in range(max(sizes) // size):
                survey.sample(chosen[batch * size : (batch + 1) * size], draw, batch)
                sums[:, i] += survey.counted
                counts[i] += 1
    return dict(zip(_QUANTITIES, (sums / counts).tolist(), strict=True))


def sample_matrix(
    graph: PartitionedGraph,
    num_neighbors: FanOuts,
    seeds_per_sampler: float,
    *,
    num_draws: int = _NUM_DRAWS,
    split: SplitName = "train",
    seed: int = 0,
) -> np.ndarray:
    """Bytes per seed by partition of the seeds and store, with all seeds of a batch from one."""
    survey = _Survey(graph, num_neighbors, split, False, seed)
    matrix = np.zeros((graph.num_parts, graph.num_parts))
    rng = np.random.default_rng(seed)
    for part, seeds in enumerate(survey.seeds):
        size = min(len(seeds), max(1, round(seeds_per_sampler)))
        for draw in range(num_draws if size else 0):
            survey.sample(rng.choice(seeds, size, replace=False), draw, part)
            matrix[part] += survey.by_store / (size * num_draws)
    # Partitions without seeds get the mean; it is not used.
    empty = np.array([len(seeds) == 0 for seeds in survey.seeds])
    matrix[empty] = matrix[~empty].mean(axis=0)
    return matrix


def split_seeds(graph: PartitionedGraph, split: SplitName) -> tuple[str, list[np.ndarray]]:
    """First node type with splits, and new ids of the seeds of a split by partition."""
    for node in graph.manifest.nodes:
        if split in node.splits:
            return node.name, [
                np.asarray(
                    graph.part(part).start(node.name) + graph.part(part).split(node.name, split),
                    np.int64,
                )
                for part in range(graph.num_parts)
            ]
    raise SpecError(
        f"the graph has no {split} split", "partition a graph with masks, or profile a run"
    )


class _Survey:
    """Samples batches and counts what they contain.

    Attributes:
        seeds: New ids of the split's seeds by partition.
        counted: Nodes, edges, bytes from stores and bytes of the last sub-batch.
        by_store: Bytes of the last sub-batch by store.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        num_neighbors: FanOuts,
        split: SplitName,
        edge_ids: bool,
        seed: int,
    ) -> None:
        self._graph, self._num_neighbors, self._seed = graph, num_neighbors, seed
        self._name, self.seeds = split_seeds(graph, split)
        self._source = LocalSource(open_edge_parts(graph))
        num_nodes = {each: graph.num_nodes_of(each) for each in graph.node_types}
        self._sampler = Sampler(self, num_nodes, graph.edge_types, Rule(edge_ids=edge_ids))
        self.counted: Sequence[float] = ()
        self.by_store = np.zeros(graph.num_parts)

    def hop(self, request: HopRequest) -> Hop:
        """Sample a hop, and count the replies."""
        found = self._source.hop(request)
        ids = 2 if len(found.edges) else 1
        owner = self._graph.owner(request.edge_type[2], request.nodes)
        self.by_store += np.bincount(
            owner, weights=8.0 * (1 + ids * found.counts), minlength=self._graph.num_parts
        )
        return found

    def sample(self, seeds: np.ndarray, epoch: int, batch: int) -> None:
        """Sample one batch and count it."""
        self.by_store = np.zeros(self._graph.num_parts)
        key = BatchKey(self._seed, epoch, batch)
        out = self._sampler.sample_hetero({self._name: seeds}, self._num_neighbors, key)
        row_bytes = self._add_rows(out)
        num_nodes = sum(len(ids) for ids in out.node.values())
        num_edges = sum(len(row) for row in out.row.values())
        store_bytes = float(self.by_store.sum())
        # Sub-batches have an original id per node, and two rows and perhaps an id per edge.
        per_edge = 16 if out.edge is None else 24
        batch_bytes = row_bytes + 8 * num_nodes + per_edge * num_edges
        self.counted = (num_nodes, num_edges, store_bytes, batch_bytes)

    def _add_rows(self, out: HeteroSampled) -> float:
        """Add features of all nodes and labels of the seeds; returns their size in the batch."""
        row_bytes = 0.0
        for node in self._graph.manifest.nodes:
            ids = out.node[node.name]
            own = np.bincount(self._graph.owner(node.name, ids), minlength=self._graph.num_parts)
            first = ids[: out.num_sampled_nodes[node.name][0]]
            seeds = np.bincount(
                self._graph.owner(node.name, first), minlength=self._graph.num_parts
            )
            for column in node.columns:
                rows = own if column.shape else seeds
                if column.shape or node.name == self._name:
                    self.by_store += rows * column.row_bytes
                    row_bytes += float(rows.sum()) * column.row_bytes
        return row_bytes
