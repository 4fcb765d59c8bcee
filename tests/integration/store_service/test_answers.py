"""What a store answers."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest

from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.sampling.hop import HopRequest, LocalSource, Rule
from headrace.graph.store.client import StoreClient
from headrace.graph.store.embedding_service import GradientPush
from headrace.graph.store.shard import open_shard
from headrace.rpc.errors import StoreError
from tests.integration.store_service.store_process import (
    StoreProcess,
)
from tests.support.local_sampling import StitchedSource
from tests.support.waiting import eventually
from tests.unit.graph import small_graphs

pytestmark = pytest.mark.integration

EDGES = small_graphs.NODE_TO_NODE


@pytest.mark.parametrize("fanout", [-1, 0, 1, 5])
@pytest.mark.parametrize("replace", [False, True])
def test_neighbours_are_those_of_the_parts(
    graph: PartitionedGraph, clients: list[StoreClient], fanout: int, replace: bool
) -> None:
    local = LocalSource({EDGES: [open_shard(graph, part).edges[EDGES] for part in (0, 1)]})
    asked = StitchedSource(clients, {"node": graph.offsets("node")})
    rng = np.random.default_rng(fanout + 1)
    for num_nodes in (0, 1, 500):
        nodes = rng.integers(0, 2000, num_nodes)
        request = HopRequest(EDGES, nodes, fanout, key=2**64 - 1, rule=Rule(replace=replace))
        want, got = local.hop(request), asked.hop(request)
        np.testing.assert_array_equal(got.counts, want.counts)
        np.testing.assert_array_equal(got.neighbours, want.neighbours)
        np.testing.assert_array_equal(got.edges, want.edges)


@pytest.mark.parametrize("part", [0, 1])
def test_rows_are_those_of_the_part(
    graph: PartitionedGraph, clients: list[StoreClient], part: int
) -> None:
    own, client = graph.part(part), clients[part]
    start, count = own.start("node"), own.num_nodes("node")
    local = np.random.default_rng(0).integers(0, count, 300)
    for column in ("x", "y"):
        got = client.gather("node", column, local + start)
        want = own.column("node", column)[local]
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
        assert got.flags.writeable
    for dims in ([1, 2, 3], [4, 0], [2, 2], [], [0, 1, 2, 3, 4]):
        got = client.gather("node", "x", local + start, np.array(dims, np.int64))
        np.testing.assert_array_equal(got, own.column("node", "x")[local][:, dims])
    assert client.gather("node", "x", np.empty(0, np.int64)).shape == (0, 5)
    first = graph.manifest.edges[0].offsets[part]
    got = client.gather(EDGES, "edge_weight", np.array([first + 9, first]))
    np.testing.assert_array_equal(got, own.edge_column(EDGES, "edge_weight")[[9, 0]])


def test_gradients_are_applied_where_local_processes_see_them(
    graph: PartitionedGraph, stores: list[StoreProcess], clients: list[StoreClient]
) -> None:
    for part, (store, client) in enumerate(zip(stores, clients, strict=True)):
        ids = np.array([3, 5]) + graph.part(part).start("node")
        before = client.gather("node", "emb", ids)
        gradients = np.arange(12, dtype=np.float32).reshape(2, 6)
        gradient_push = GradientPush(0, 1, 0, 1, True, 0.5, ids, gradients)
        # Twice, as after an answer that got lost.
        for _ in range(2):
            assert client.push("node", "emb", gradient_push).result() == (True, 1)
        after = client.gather("node", "emb", ids)
        np.testing.assert_allclose(after, before - 0.5 * gradients, rtol=1e-5)
        file = store.folder / "embeddings" / f"part-{part}" / "0" / "values.bin"
        np.testing.assert_array_equal(np.fromfile(file, np.float32).reshape(-1, 6)[[3, 5]], after)


def _is_warm(client: StoreClient) -> bool:
    status = client.status()
    return status.warmed_bytes == status.to_warm_bytes


def test_a_store_says_how_it_is(graph: PartitionedGraph, clients: list[StoreClient]) -> None:
    for part, client in enumerate(clients):
        assert eventually(partial(_is_warm, client))
        status = client.status()
        assert status.part == part
        assert status.num_edges == graph.part(part).num_edges(EDGES)
        assert status.feature_bytes == status.resident_bytes == status.warmed_bytes
        assert status.counts["status"] >= 1
        assert status.memory_bytes > 0


def test_many_requests_are_on_their_way(
    graph: PartitionedGraph, clients: list[StoreClient]
) -> None:
    own, client = graph.part(0), clients[0]
    rng = np.random.default_rng(1)
    asked = [rng.integers(0, own.num_nodes("node"), 50) for _ in range(200)]
    futures = [client.gather_soon("node", "x", ids + own.start("node")) for ids in asked]
    refused = client.gather_soon("node", "x", np.array([-1]))
    for ids, future in zip(asked, futures, strict=True):
        np.testing.assert_array_equal(future.result(20), own.column("node", "x")[ids])
    with pytest.raises(StoreError, match="store 0 on m7 refused to gather: ids -1"):
        refused.result(20)


def test_threads_share_a_client(graph: PartitionedGraph, clients: list[StoreClient]) -> None:
    own, client = graph.part(1), clients[1]
    wrong: list[int] = []

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            ids = rng.integers(0, own.num_nodes("node"), 20)
            got = client.gather("node", "x", ids + own.start("node"))
            if not np.array_equal(got, own.column("node", "x")[ids]):
                wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
