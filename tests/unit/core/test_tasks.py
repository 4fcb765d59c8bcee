from __future__ import annotations

import numpy as np
import pytest

from headrace.core.job import Job
from headrace.core.tasks import ROLES, EdgeKind, TaskGraph, build_task_graph


def graph_of(num_machines: int = 3, **fields: object) -> TaskGraph:
    given = {"trainers": 2, "samplers_per_trainer": 2, "batch_size": 8} | fields
    return build_task_graph(Job.model_validate(given), num_machines)


def edges(graph: TaskGraph, kind: EdgeKind) -> set[tuple[str, str, int]]:
    return {
        (graph.names[graph.src[e]], graph.names[graph.dst[e]], int(graph.lag[e]))
        for e in np.flatnonzero(graph.kind == kind)
    }


def test_tasks_with_servers() -> None:
    graph = graph_of(sync="ps", parameter_servers=2)
    assert graph.names == (
        *("store0", "store1", "store2"),
        *("sampler0.0", "sampler0.1", "sampler1.0", "sampler1.1"),
        *("trainer0", "trainer1"),
        *("ps0", "ps1"),
    )
    assert [ROLES[code].value for code in graph.role[[0, 3, 7, 9]]] == [
        *("store", "sampler", "trainer", "ps"),
    ]
    assert (graph.first_sampler, graph.first_trainer, graph.first_server) == (3, 7, 9)
    assert graph.first_ring == graph.num_tasks == 11


def test_every_store_feeds_every_sampler_and_samplers_their_trainer() -> None:
    graph = graph_of(sync="ps")
    assert len(edges(graph, EdgeKind.GRAPH)) == 3 * 4
    assert ("store2", "sampler1.0", 0) in edges(graph, EdgeKind.GRAPH)
    assert edges(graph, EdgeKind.BATCH) == {
        ("sampler0.0", "trainer0", 0),
        ("sampler0.1", "trainer0", 0),
        ("sampler1.0", "trainer1", 0),
        ("sampler1.1", "trainer1", 0),
    }


def test_parameters_come_an_iteration_later() -> None:
    graph = graph_of(sync="ps", parameter_servers=2)
    gradients = {(f"trainer{w}", f"ps{p}", 0) for w in range(2) for p in range(2)}
    assert edges(graph, EdgeKind.GRADIENT) == gradients
    assert edges(graph, EdgeKind.PARAMETER) == {(p, w, 1) for w, p, _ in gradients}
    assert edges(graph, EdgeKind.RING) == set()


def test_graph_edges_are_in_the_order_of_samplers_and_stores() -> None:
    graph = graph_of(sync="ps")
    is_graph = graph.kind == EdgeKind.GRAPH
    np.testing.assert_array_equal(graph.src[is_graph].reshape(4, 3), np.tile(np.arange(3), (4, 1)))
    np.testing.assert_array_equal(graph.dst[is_graph].reshape(4, 3)[:, 0], [3, 4, 5, 6])


def test_a_ring_of_three() -> None:
    job = Job(trainers=3, batch_size=8)
    graph = build_task_graph(job, 2, ring_order=(0, 2, 1))
    assert graph.num_tasks == 2 + 3 + 3 + 1 + 4 * 3
    ring = edges(graph, EdgeKind.RING)
    # Around the ring 0 -> 2 -> 1 -> 0, four steps per trainer, the last into the next iteration.
    assert len(ring) == 4 * 3
    assert ("ring0.0", "ring2.1", 0) in ring
    assert ("ring2.0", "ring1.1", 0) in ring
    assert ("ring1.3", "trainer0", 1) in ring
    order = edges(graph, EdgeKind.ORDER)
    assert ("trainer1", "barrier", 0) in order
    assert ("barrier", "ring2.0", 0) in order
    assert ("ring1.2", "ring1.3", 0) in order
    assert ("ring1.3", "trainer1", 1) in order


def test_ring_steps_belong_to_their_trainer() -> None:
    graph = build_task_graph(Job(trainers=3, batch_size=8), 2, ring_order=(0, 2, 1))
    for task in range(graph.first_ring + 1, graph.num_tasks):
        assert graph.names[task].startswith(f"ring{graph.owner[task]}.")


@pytest.mark.parametrize("sync", ["ps", "ring"])
def test_one_trainer(sync: str) -> None:
    graph = graph_of(trainers=1, sync=sync)
    assert (graph.num_tasks > graph.first_server) == (sync == "ps")
    assert edges(graph, EdgeKind.RING) == set()


@pytest.mark.parametrize("sync", ["ps", "ring"])
def test_without_lagging_edges_there_is_no_circle(sync: str) -> None:
    graph = graph_of(trainers=4, sync=sync)
    missing = np.bincount(graph.dst[graph.lag == 0], minlength=graph.num_tasks)
    done: list[int] = []
    ready = [int(task) for task in np.flatnonzero(missing == 0)]
    while ready:
        task = ready.pop()
        done.append(task)
        for consumer in graph.dst[(graph.src == task) & (graph.lag == 0)]:
            missing[consumer] -= 1
            if missing[consumer] == 0:
                ready.append(int(consumer))
    assert len(done) == graph.num_tasks


def full_graph_of(**fields: object) -> TaskGraph:
    given = {"kind": "full-graph", "trainers": 2, "swaps": [{"row_bytes": 8}]} | fields
    return build_task_graph(Job.model_validate(given), 2)


def test_a_swap_has_a_layer_during_and_one_after_it() -> None:
    graph = full_graph_of()
    assert graph.names[graph.first_layer : graph.first_ring] == (
        *("layer0.0", "layer1.0"),
        *("layer0.1", "layer1.1"),
    )
    assert edges(graph, EdgeKind.SWAP) == {
        ("trainer0", "layer1.1", 0),
        ("trainer1", "layer0.1", 0),
    }
    assert {
        ("trainer0", "layer0.0", 0),
        ("layer0.0", "layer0.1", 0),
        ("layer0.1", "barrier", 0),
        ("layer0.1", "trainer0", 1),
    } <= edges(graph, EdgeKind.ORDER)
    owners = graph.owner[graph.first_layer : graph.first_ring]
    assert owners.tolist() == [0, 1, 0, 1]


def test_gradients_of_a_full_graph_follow_the_last_layer() -> None:
    graph = full_graph_of(sync="ps")
    assert edges(graph, EdgeKind.GRADIENT) == {("layer0.1", "ps0", 0), ("layer1.1", "ps0", 0)}
    assert edges(graph, EdgeKind.PARAMETER) == {("ps0", "trainer0", 1), ("ps0", "trainer1", 1)}


def test_swaps_follow_each_other() -> None:
    graph = full_graph_of(swaps=[8, 8])
    assert {("layer0.1", "layer1.3", 0), ("layer0.5", "layer1.7", 0)} <= edges(graph, EdgeKind.SWAP)
    assert graph.num_layers == 2 * 4 * 2
