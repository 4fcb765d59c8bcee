"""Traffic and training seeds of a graph, sampled without a run."""

from __future__ import annotations

import numpy as np
import pytest

import headrace
from headrace.api.graph import partition
from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import SpecError
from headrace.core.job import Job
from headrace.core.profile import Profile, StoreTraffic
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.sampler_worker.seed_assignment import assign_seeds, whole_seed_counts
from headrace.profiling.default_profile import default_profile
from headrace.profiling.from_graph import sample_growth, sample_local, with_graph
from headrace.profiling.graph_survey import split_seeds

JOB = Job(trainers=3, samplers_per_trainer=2, batch_size=60)
CLUSTER = Cluster(
    machines=tuple(
        Machine(name=f"m{m}", nic_in=1e8, nic_out=1e8, resources={"cpu": 8}) for m in range(3)
    )
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> PartitionedGraph:
    """Three partitions of 3:2:1, as `partition --cluster` cuts them."""
    unequal = Cluster(
        machines=tuple(
            Machine(name=f"m{m}", nic_in=nic * 1e8, nic_out=nic * 1e8)
            for m, nic in enumerate((3, 2, 1))
        )
    )
    folder = tmp_path_factory.mktemp("graph")
    return partition("generated:nodes=6000,edges=60000,features=16", folder / "parts", unequal)


def test_part_seeds_are_those_of_the_graph(graph: PartitionedGraph) -> None:
    found = with_graph(default_profile(), graph, JOB)
    _, seeds = split_seeds(graph, "train")
    assert found.part_seeds == tuple(map(len, seeds))
    assert found.version == 2
    assert Profile.model_validate(found.model_dump(mode="json")) == found


@pytest.mark.slow
def test_fan_outs_have_a_default(graph: PartitionedGraph) -> None:
    assert with_graph(default_profile(), graph, JOB) == with_graph(
        default_profile(), graph, JOB, [10, 5]
    )
    assert headrace.plan(CLUSTER, JOB, graph=graph.folder).seed_mix_name == "local-first"


def test_matrix_has_the_volumes_of_batches_of_one_partition(graph: PartitionedGraph) -> None:
    matrix, _ = sample_local(graph, [5, 5], 30)
    assert matrix.shape == (3, 3)
    assert (matrix.argmax(axis=1) == np.arange(3)).all()
    again, _ = sample_local(graph, [5, 5], 30)
    assert np.array_equal(matrix, again)
    uniform = float(sample_growth(graph, [5, 5], 30).values_at("store_bytes", 30)) / 30
    # Seeds of one partition have more neighbours in common.
    assert matrix.sum(axis=1).mean() <= uniform * 1.02


def test_sampled_bytes_hold_for_the_batches_of_the_job(graph: PartitionedGraph) -> None:
    found = with_graph(default_profile(), graph, JOB, [5, 5])
    assert found.seeds_per_sampler == default_profile().seeds_per_sampler != 30
    sampled, _ = sample_local(graph, [5, 5], 30)
    np.testing.assert_allclose(found.store_bytes_per_seed(JOB, 3), sampled, rtol=1e-4)
    _, by_part = sample_local(graph, [5, 5], 30)
    expected = 30 * float(np.average(by_part, weights=found.part_seeds))
    assert float(found.batch_bytes(JOB, np.array(30.0))) == pytest.approx(expected)
    uniform = float(sample_growth(graph, [5, 5], 30).values_at("batch_bytes", 30))
    assert 0.5 * uniform < expected < uniform


def test_a_profile_of_uniform_seeds_gets_sampled_rows(graph: PartitionedGraph) -> None:
    rows = ((9e3, 6e3, 3e3),) * 3
    measured = default_profile().model_copy(
        update={
            "source": "measured",
            "seeds_per_sampler": 30.0,
            "store_traffic": StoreTraffic(matrix=rows),
        }
    )
    found = with_graph(measured, graph, JOB, [5, 5]).store_traffic.bytes_per_seed_matrix(3)
    sampled, _ = sample_local(graph, [5, 5], 30)
    np.testing.assert_allclose(found / found.sum(), sampled / sampled.sum(), rtol=1e-4)
    completed = with_graph(measured, graph, JOB, [5, 5])
    assert with_graph(completed, graph, JOB, [5, 5]) == completed
    batches = completed.batch_traffic.bytes_per_seed
    assert 0.5 < batches / measured.batch_traffic.bytes_per_seed < 1
    assert 0.7 * 18e3 < found.sum(axis=1).mean() < 1.05 * 18e3


def test_measured_entries_are_kept_and_unknown_ones_sampled(graph: PartitionedGraph) -> None:
    rows = ((9e3, 1e3, 1e3), (1e3, 8e3, 1e3), (4e3, 3e3, 2e3))
    errors = ((0.1, 0.1, 0.1), (0.1, 0.1, 0.1), (1.0, 1.0, 1.0))
    traffic = StoreTraffic(matrix=rows, relative_errors=errors)
    measured = default_profile().model_copy(update={"source": "measured", "store_traffic": traffic})
    found = with_graph(measured, graph, JOB, [5, 5]).store_traffic.bytes_per_seed_matrix(3)
    np.testing.assert_allclose(found[:2], rows[:2])
    assert with_graph(measured, graph, JOB, [5, 5]).batch_traffic == measured.batch_traffic
    assert found[2].argmax() == 2


@pytest.mark.slow
def test_plan_takes_local_seeds_and_the_run_assigns_what_was_planned(
    graph: PartitionedGraph,
) -> None:
    plan = headrace.plan(CLUSTER, JOB, graph=graph.folder, num_neighbors=[5, 5])
    assert plan.seed_mix_name == "local-first"
    assert plan.network_bytes < 0.7 * plan.uniform_network_bytes
    _, seeds = split_seeds(graph, "train")
    sizes = np.array([len(own) for own in seeds])
    np.testing.assert_allclose(plan.seeds.sum(axis=0) / plan.seeds.sum(), sizes / sizes.sum())
    counts = whole_seed_counts(plan.seeds, JOB.samplers_per_trainer)
    assigned = assign_seeds(seeds, plan.seeds, counts)
    by_part = np.array([[np.isin(own, part).sum() for part in seeds] for own in assigned])
    planned = plan.seeds * (sizes.sum() / plan.seeds.sum())
    np.testing.assert_allclose(by_part, planned, atol=JOB.batch_size)


def test_a_graph_with_another_number_of_partitions_is_refused(graph: PartitionedGraph) -> None:
    smaller = Cluster(machines=CLUSTER.machines[:2])
    with pytest.raises(SpecError, match="2 machines, but the graph has 3 partitions"):
        headrace.plan(smaller, JOB, graph=graph.folder)


def test_fan_outs_need_a_graph() -> None:
    with pytest.raises(SpecError, match="fan-outs need a graph"):
        headrace.plan(CLUSTER, JOB, num_neighbors=[5])


def test_seeds_of_another_number_of_partitions_are_refused() -> None:
    profile = default_profile().model_copy(update={"part_seeds": (1, 2), "version": 2})
    with pytest.raises(SpecError, match="2 graph partitions"):
        headrace.plan(CLUSTER, JOB, profile)
