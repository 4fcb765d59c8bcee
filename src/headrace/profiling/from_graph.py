"""Traffic of a job from batches sampled from its partitioned graph, without a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.core.errors import SpecError
from headrace.core.growth import Growth, Quantity
from headrace.core.job import Job
from headrace.core.profile import Profile, StoreTraffic
from headrace.core.traffic import PLAIN, Traffic
from headrace.graph.format.manifest import SplitName
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.sampling.neighbor_sampler import FanOuts
from headrace.profiling.graph_survey import FRACTIONS, CacheCurve, Survey, sample_cache, split_seeds
from headrace.profiling.samples import NOTHING_KNOWN

_STEP = 4
"""Quotient of two sampled sizes."""

FAN_OUTS = (10, 5)
"""Neighbours per hop to sample if those of the script's loader are not known."""

_NUM_DRAWS = 8
"""Batches of the largest size; smaller ones are their slices."""

_QUANTITIES: tuple[Quantity, ...] = ("nodes", "edges", "store_bytes", "batch_bytes")
_IN_PROFILE: tuple[Quantity, ...] = ("store_bytes", "batch_bytes")


_TENTH = 1 + FRACTIONS.index(0.1)

_NEGLIGIBLE = 0.01
"""A larger cache must save this share of the bytes, or it is not worth its memory."""


def with_graph(
    profile: Profile,
    graph: PartitionedGraph,
    job: Job,
    num_neighbors: FanOuts | None = None,
    *,
    seed: int = 0,
    traffic: Traffic = PLAIN,
    most_cache_bytes: float | None = 0.0,
    cache_bytes: float | None = None,
    parts_per_cache: float = 1.0,
) -> Profile:
    """A profile with the training seeds of each partition and sampled traffic.

    Bytes per seed, by partition of the seed and store, are those of batches whose seeds are from
    one partition. Entries of a measured profile are kept, except those that its run did not
    determine: these are sampled ones, scaled to what was measured. Seeds of one partition have more
    neighbours in common than uniform seeds, so their bytes are fewer than those of a uniform mix.

    A cache saves bytes of other partitions than the seed's own, and of that one for samplers on
    other machines; it holds rows of all partitions whose seeds such a sampler has. Measured bytes
    are those of the traffic settings of their run; for other settings they are scaled as the
    sampled ones.

    Args:
        profile: The profile.
        graph: The partitioned graph.
        job: The job, for its seeds per sampler.
        num_neighbors: Neighbours per hop, as in the script's loader; `FAN_OUTS` by default.
        seed: Random seed of the samples.
        traffic: Settings that reduce the traffic, without a cache.
        most_cache_bytes: Limit of the memory of each sampler's cache; None for a tenth of all rows.
        cache_bytes: Memory of each sampler's cache, instead of as much as is worthwhile.
        parts_per_cache: Partitions of other machines whose seeds a sampler has.

    Raises:
        SpecError: The graph has no training seeds.
    """
    _, seeds = split_seeds(graph, "train")
    known = tuple(len(own) for own in seeds)
    if not sum(known):
        raise SpecError("the graph has no training nodes", "partition a graph with a train mask")
    # A profile that a graph has completed, or of a run of such a plan, is complete.
    is_complete = profile.part_seeds == known and len(set(profile.store_traffic.matrix)) > 1
    profile = profile.model_copy(update={"version": 2, "part_seeds": known})
    if num_neighbors is None:
        num_neighbors = FAN_OUTS
    per_sampler = job.batch_size / job.samplers_per_trainer
    sampling = _Sampling(graph, num_neighbors, per_sampler, seed, parts_per_cache)
    used = profile.traffic or PLAIN
    matrix, store_bytes, batch_bytes, growth = sampling.volumes(used)
    uniform_batch_bytes = float(growth.values_at("batch_bytes", per_sampler)) / per_sampler
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
    stores, batches = profile.store_traffic, profile.batch_traffic
    errors: tuple[tuple[float, ...], ...] = ()
    if profile.source == "measured" and is_complete:
        matrix, errors = stores.bytes_per_seed_matrix(len(known)), stores.relative_errors
    elif profile.source == "measured":
        matrix, errors = _completed(stores, matrix, store_bytes, np.array(known) / sum(known))
        if (np.array(errors) >= NOTHING_KNOWN).all():
            # The run had uniform seeds.
            ratio = batch_ratio * batch_bytes / uniform_batch_bytes
            batches = batches.model_copy(update={"bytes_per_seed": batches.bytes_per_seed * ratio})
    else:
        batches = batches.model_copy(update={"bytes_per_seed": batch_bytes})
    settings, store_factors, batch_factor = sampling.change(
        used, traffic, most_cache_bytes, cache_bytes
    )
    matrix = matrix * store_factors
    batches = batches.model_copy(update={"bytes_per_seed": batches.bytes_per_seed * batch_factor})
    stores = stores.model_copy(
        update={
            "matrix": tuple(tuple(float(f"{value:.6g}") for value in row) for row in matrix),
            "bytes_per_seed": 0.0,
            "locality": 0.0,
            "relative_errors": errors,
        }
    )
    return profile.model_copy(
        update={
            "store_traffic": stores,
            "batch_traffic": batches,
            "traffic": settings,
            "seeds_per_sampler": profile.nominal_seeds(job)[0],
        }
    )


class _Sampling:
    """Sampled volumes of a graph under several traffic settings."""

    def __init__(
        self,
        graph: PartitionedGraph,
        num_neighbors: FanOuts,
        per_sampler: float,
        seed: int,
        parts_per_cache: float,
    ) -> None:
        self._graph, self._num_neighbors = graph, num_neighbors
        self._parts_per_cache = parts_per_cache
        self._per_sampler, self._seed = per_sampler, seed
        _, seeds = split_seeds(graph, "train")
        self._weights = np.array([len(own) for own in seeds], dtype=np.float64)
        self._curves: dict[Traffic, CacheCurve] = {}
        self._volumes: dict[Traffic, tuple[np.ndarray, float, float, Growth]] = {}

    def volumes(self, traffic: Traffic) -> tuple[np.ndarray, float, float, Growth]:
        """Bytes per seed by partition and store, of uniform seeds, and of a batch; their growth.

        Bytes of a batch are those of seeds of one partition.
        """
        if traffic not in self._volumes:
            self._volumes[traffic] = self._sample(traffic)
        return self._volumes[traffic]

    def _sample(self, traffic: Traffic) -> tuple[np.ndarray, float, float, Growth]:
        matrix, batch_bytes = sample_local(
            self._graph, self._num_neighbors, self._per_sampler, seed=self._seed, traffic=traffic
        )
        if traffic.cache_bytes:
            matrix *= _cached(self._curve(traffic), traffic.cache_bytes, self._parts_per_cache)
        growth = sample_growth(
            self._graph, self._num_neighbors, self._per_sampler, seed=self._seed, traffic=traffic
        )
        store_bytes = float(growth.values_at("store_bytes", self._per_sampler)) / self._per_sampler
        return matrix, store_bytes, float(np.average(batch_bytes, weights=self._weights)), growth

    def change(
        self,
        used: Traffic,
        wanted: Traffic,
        most_cache_bytes: float | None,
        cache_bytes: float | None = None,
    ) -> tuple[Traffic | None, np.ndarray, float]:
        """Settings with a cache, and factors of the bytes from stores and of a batch."""
        num = self._graph.num_parts
        if num > 1 and (most_cache_bytes if cache_bytes is None else cache_bytes) != 0.0:
            curve = self._curve(wanted)
            most = float(curve.sizes[_TENTH])
            most = most if most_cache_bytes is None else min(most, most_cache_bytes)
            num_bytes = cache_bytes or _worthwhile(curve, most, self._weights)
            rate = curve.hit_rate_at(num_bytes, self._weights)
            wanted = wanted.model_copy(
                update={
                    "cache_bytes": float(round(num_bytes)),
                    "hit_rate": round(rate, 4) if num_bytes else None,
                }
            )
        if wanted == used:
            return None if wanted == PLAIN else wanted, np.ones((num, num)), 1.0
        before, _, batch_before, _ = self.volumes(used)
        after, _, batch_after, _ = self.volumes(wanted)
        factors = np.where(before > 0, after / np.where(before > 0, before, 1.0), 1.0)
        return wanted, factors, batch_after / batch_before

    def _curve(self, traffic: Traffic) -> CacheCurve:
        plain = traffic.model_copy(update={"cache_bytes": 0.0, "hit_rate": None})
        if plain not in self._curves:
            self._curves[plain] = sample_cache(
                self._graph, self._num_neighbors, self._per_sampler, traffic=plain, seed=self._seed
            )
        return self._curves[plain]


def _cached(curve: CacheCurve, num_bytes: float, parts_per_cache: float) -> np.ndarray:
    """Factors of the bytes by partition and store; bytes on one machine are never sent."""
    saved = np.repeat(curve.savings_at(num_bytes)[:, None], len(curve.savings), axis=1)
    np.fill_diagonal(saved, curve.own_savings_at(num_bytes / max(1.0, parts_per_cache)))
    factors: np.ndarray = 1.0 - saved
    return factors


def _worthwhile(curve: CacheCurve, most_bytes: float, weights: np.ndarray) -> float:
    """Memory beyond which a cache saves little more, within the limit."""
    sizes = [*curve.sizes[curve.sizes < most_bytes], most_bytes]
    best = 0.0
    for size in sizes:
        gain = np.average(curve.savings_at(size) - curve.savings_at(best), weights=weights)
        if gain >= _NEGLIGIBLE:
            best = float(size)
    return best


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
    traffic: Traffic = PLAIN,
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
        traffic: Settings that reduce the traffic; a cache is not considered.

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
    means = sample_batches(
        graph, num_neighbors, sizes, split=split, edge_ids=edge_ids, seed=seed, traffic=traffic
    )
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
    traffic: Traffic = PLAIN,
) -> dict[Quantity, list[float]]:
    """Means of nodes, edges and bytes of a batch, for each size in seeds.

    `num_draws` batches of the largest size are drawn; smaller batches are their slices.
    """
    survey = Survey(graph, num_neighbors, split, edge_ids, seed, traffic)
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


def sample_local(
    graph: PartitionedGraph,
    num_neighbors: FanOuts,
    seeds_per_sampler: float,
    *,
    num_draws: int = _NUM_DRAWS,
    split: SplitName = "train",
    seed: int = 0,
    traffic: Traffic = PLAIN,
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes per seed from each store, and of a batch, by partition of all seeds of a batch."""
    survey = Survey(graph, num_neighbors, split, False, seed, traffic)
    matrix, batch_bytes = np.zeros((graph.num_parts, graph.num_parts)), np.zeros(graph.num_parts)
    rng = np.random.default_rng(seed)
    for part, seeds in enumerate(survey.seeds):
        size = min(len(seeds), max(1, round(seeds_per_sampler)))
        for draw in range(num_draws if size else 0):
            survey.sample(rng.choice(seeds, size, replace=False), draw, part)
            matrix[part] += survey.by_store / (size * num_draws)
            batch_bytes[part] += survey.counted[3] / (size * num_draws)
    # Partitions without seeds get the mean; it is not used.
    empty = np.array([len(seeds) == 0 for seeds in survey.seeds])
    matrix[empty] = matrix[~empty].mean(axis=0)
    return matrix, batch_bytes
