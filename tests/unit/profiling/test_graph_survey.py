"""Traffic settings and caches: what sampled batches say about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.api.graph import partition
from headrace.api.graph_plan import cache_memory
from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import SpecError
from headrace.core.job import Job
from headrace.core.profile import StoreTraffic
from headrace.core.traffic import PLAIN, Traffic, traffic_settings
from headrace.graph.format.manifest import ColumnInfo
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.sampler_worker.feature_cache import FeatureCache, memory_for_rows
from headrace.graph.sampling.hop import LocalSource, Rule
from headrace.graph.sampling.local_edges import open_edge_parts
from headrace.graph.sampling.neighbor_sampler import BatchKey, Sampler
from headrace.profiling.default_profile import default_profile
from headrace.profiling.from_graph import with_graph
from headrace.profiling.graph_survey import FRACTIONS, Survey, sample_cache
from headrace.runtime.controller.run import check
from headrace.runtime.run_dir.run_config import RunConfig

JOB = Job(trainers=3, samplers_per_trainer=1, batch_size=64)


def cluster_of(memory_bytes: float) -> Cluster:
    resources = {"cpu": 8.0, "memory": memory_bytes}
    return Cluster(
        machines=tuple(
            Machine(name=f"m{m}", nic_in=1e7, nic_out=1e7, resources=resources) for m in range(3)
        )
    )


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> PartitionedGraph:
    folder = tmp_path_factory.mktemp("graph")
    return partition("generated:nodes=6000,edges=60000,features=16", folder / "parts", 3)


@pytest.mark.parametrize("far", [1.0, 0.25])
def test_predicted_hit_rates_are_those_of_the_cache(graph: PartitionedGraph, far: float) -> None:
    curve = sample_cache(graph, [5, 5], 64, traffic=Traffic(far=far))
    assert (np.diff(curve.hit_rates, axis=1) >= 0).all()
    assert (curve.savings < curve.hit_rates + 1e-9).all()
    info, at = ColumnInfo(name="x", dtype="float32", shape=(16,)), FRACTIONS.index(0.1)
    memory = memory_for_rows(info, 6000, 600)
    assert curve.sizes[1 + at] == memory
    source = LocalSource(open_edge_parts(graph))
    offsets = {"node": graph.offsets("node")}
    sampler = Sampler(source, {"node": 6000}, graph.edge_types, Rule(far=far), offsets)
    rates = []
    for part, seeds in enumerate(Survey(graph, [5, 5]).seeds):
        cache, hits, rows = FeatureCache(info, 6000, memory), 0, 0
        assert cache.num_slots == pytest.approx(600, abs=1)
        for batch in range(150):
            chosen = np.random.default_rng(batch).choice(seeds, 64, replace=False)
            key = BatchKey(5, 0, batch)
            ids = sampler.sample_hetero({"node": chosen}, [5, 5], key).node["node"]
            away = ids[graph.owner("node", ids) != part]
            _, misses = cache.lookup(away)
            cache.admit(away[misses], np.zeros((len(misses), 16), np.float32))
            hits += len(away) - len(misses) if batch >= 100 else 0
            rows += len(away) if batch >= 100 else 0
        rates.append(hits / rows)
    np.testing.assert_allclose(curve.hit_rates[:, 1 + at], rates, atol=0.05)


def test_settings_scale_sampled_and_measured_bytes_alike(graph: PartitionedGraph) -> None:
    plain = with_graph(default_profile(), graph, JOB, [5, 5])
    measured = plain.model_copy(
        update={
            "source": "measured",
            "store_traffic": StoreTraffic(
                matrix=tuple(tuple(3 * v for v in row) for row in plain.store_traffic.matrix),
                relative_errors=((0.01,) * 3,) * 3,
            ),
        }
    )
    assert plain.traffic is None
    ratios = []
    for profile in (plain, measured):
        before = profile.store_traffic.bytes_per_seed_matrix(3)
        found = with_graph(profile, graph, JOB, [5, 5], traffic=traffic_settings("safe"))
        assert found.traffic == traffic_settings("safe")
        ratios.append(found.store_traffic.bytes_per_seed_matrix(3) / before)
        # Rows of 16 values and their ids are small: batches shrink less than rows.
        assert found.batch_traffic.bytes_per_seed < 0.8 * profile.batch_traffic.bytes_per_seed
    np.testing.assert_allclose(ratios[0], ratios[1], rtol=1e-3)
    assert (ratios[0][~np.eye(3, dtype=bool)] < 0.5).all()
    # A profile of a run with these settings already has their bytes.
    again = with_graph(found, graph, JOB, [5, 5], traffic=traffic_settings("safe"))
    np.testing.assert_allclose(
        again.store_traffic.bytes_per_seed_matrix(3), found.store_traffic.bytes_per_seed_matrix(3)
    )


def test_a_cache_saves_rows_of_all_partitions_of_other_machines(graph: PartitionedGraph) -> None:
    plain = with_graph(default_profile(), graph, JOB, [5, 5])
    found = with_graph(default_profile(), graph, JOB, [5, 5], most_cache_bytes=None)
    assert found.traffic is not None
    assert found.traffic.cache_bytes > 0
    ratio = found.store_traffic.bytes_per_seed_matrix(
        3
    ) / plain.store_traffic.bytes_per_seed_matrix(3)
    assert (ratio < 1).all()
    # Rows of several partitions share the cache of a sampler that is on none of their machines.
    shared = with_graph(
        default_profile(), graph, JOB, [5, 5], most_cache_bytes=None, parts_per_cache=2.0
    ).store_traffic.bytes_per_seed_matrix(3)
    alone = found.store_traffic.bytes_per_seed_matrix(3)
    assert (np.diag(shared) > np.diag(alone)).all()
    np.testing.assert_allclose(
        shared[~np.eye(3, dtype=bool)], alone[~np.eye(3, dtype=bool)], rtol=1e-5
    )


def test_a_plan_takes_the_cache_that_a_script_sets(graph: PartitionedGraph) -> None:
    settings: dict[str, Any] = {
        "graph": graph.folder,
        "num_neighbors": [5, 5],
        "method": "colocate",
    }
    none = headrace.plan(cluster_of(1e9), JOB, cache_bytes=0, **settings)
    assert (none.profile.traffic or PLAIN).cache_bytes == 0
    some = headrace.plan(cluster_of(1e9), JOB, cache_bytes=20_000, **settings)
    assert some.profile.traffic is not None
    assert some.profile.traffic.cache_bytes == 20_000
    assert some.profile.traffic.hit_rate is not None
    assert some.network_bytes < none.network_bytes
    with pytest.raises(SpecError, match="a cache needs a graph"):
        headrace.plan(cluster_of(1e9), JOB, cache_bytes=0)


def test_the_cache_of_a_plan_fits_the_memory(graph: PartitionedGraph) -> None:
    settings: dict[str, Any] = {
        "graph": graph.folder,
        "num_neighbors": [5, 5],
        "method": "colocate",
    }
    roomy = headrace.plan(cluster_of(1e9), JOB, **settings)
    traffic = roomy.profile.traffic
    assert traffic is not None
    assert traffic.hit_rate is not None
    free_bytes = cache_memory(roomy, graph)
    assert free_bytes is not None
    assert 0 < traffic.cache_bytes <= free_bytes
    held = max(graph.part(m).num_bytes for m in range(3))
    tight = headrace.plan(cluster_of(held + traffic.cache_bytes), JOB, **settings)
    limit = cache_memory(tight, graph)
    assert limit is not None
    assert tight.profile.traffic is not None
    assert 0 < tight.profile.traffic.cache_bytes <= limit < traffic.cache_bytes
    full = headrace.plan(cluster_of(held), JOB, **settings)
    assert (full.profile.traffic or PLAIN).cache_bytes == 0


def test_explain_says_what_other_traffic_would_save(graph: PartitionedGraph) -> None:
    settings: dict[str, Any] = {"graph": graph.folder, "num_neighbors": [5, 5]}
    plan = headrace.plan(cluster_of(1e9), JOB, method="colocate", policy="maxmin", **settings)
    found = headrace.explain(plan, **settings)
    by_name = {remedy.change: remedy.saving for remedy in found.remedies}
    (safe,) = (saving for name, saving in by_name.items() if name.startswith("traffic safe: int8"))
    (least,) = (saving for name, saving in by_name.items() if name.startswith("traffic least"))
    assert 0 < safe <= least < 1


def test_a_run_refuses_a_graph_in_another_form(graph: PartitionedGraph, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "graph": graph.folder,
        "num_neighbors": [5, 5],
        "method": "colocate",
    }
    safe = headrace.plan(cluster_of(1e9), JOB, traffic="safe", **settings)
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(SpecError, match=r"the plan needs int8 features, .* has float32"):
        check(RunConfig(plan=safe, graph=graph.folder, script=script))
    source = "generated:nodes=6000,edges=60000,features=16"
    encoded = partition(source, tmp_path / "int8", 3, features="int8")
    assert check(RunConfig(plan=safe, graph=encoded.folder, script=script)) is not None


def test_unknown_traffic_and_traffic_without_a_graph_are_refused() -> None:
    with pytest.raises(SpecError, match="no traffic settings 'fast'"):
        headrace.plan(cluster_of(1e9), JOB, traffic="fast")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="traffic safe needs a graph"):
        headrace.plan(cluster_of(1e9), JOB, traffic="safe")
