"""Stores that draw by weights and times of edges give what one process draws."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
pytest.importorskip("pyarrow")

from headrace.graph.format.partitioned_graph import PartitionedGraph  # noqa: E402
from headrace.graph.loader.neighbor_loader import NeighborLoader  # noqa: E402
from headrace.graph.sampler_worker.config import SamplerConfig  # noqa: E402
from headrace.graph.sampling.hop import HopRequest  # noqa: E402
from headrace.graph.sampling.store_pool import Connect  # noqa: E402
from headrace.graph.store.client import StoreClient  # noqa: E402
from headrace.graph.store.server import StoreServer  # noqa: E402
from headrace.graph.store.shard import open_shard  # noqa: E402
from headrace.rpc.config import TaskAddress  # noqa: E402
from headrace.rpc.credentials import Credentials, Secret  # noqa: E402
from headrace.rpc.errors import StoreError  # noqa: E402
from tests.support.sampler_processes import start_prefetcher  # noqa: E402
from tests.unit.graph.loader.loading_graphs import assert_same, in_parts, random_data  # noqa: E402
from tests.unit.graph.loader.test_pyg_stores import without_parts  # noqa: E402

pytestmark = pytest.mark.integration

NUM_NODES, NUM_EDGES = 300, 4000
CREDENTIALS = Credentials(Secret.random())
RULES: dict[str, dict[str, Any]] = {
    "weights": {"weight_attr": "edge_weight"},
    "weights, again": {"weight_attr": "edge_weight", "replace": True},
    "times": {"time_attr": "edge_time"},
    "last": {"time_attr": "edge_time", "temporal_strategy": "last"},
    "both": {"weight_attr": "edge_weight", "time_attr": "edge_time"},
}


@pytest.fixture(scope="module")
def data() -> Any:
    made = random_data(NUM_NODES, NUM_EDGES)
    rng = torch.Generator().manual_seed(1)
    made.edge_time = torch.randint(100, (NUM_EDGES,), generator=rng)
    made.edge_weight[torch.rand(NUM_EDGES, generator=rng) < 0.3] = 0
    return made


@contextmanager
def serving(graph: PartitionedGraph) -> Iterator[dict[int, TaskAddress]]:
    """Where the stores of all parts are."""
    servers = [StoreServer(open_shard(graph, part), CREDENTIALS) for part in range(graph.num_parts)]
    try:
        yield {
            part: TaskAddress(
                task=f"store {part}", machine="m7", host="127.0.0.1", port=server.port
            )
            for part, server in enumerate(servers)
        }
    finally:
        for server in servers:
            server.close()


@pytest.mark.parametrize("num_stores", [1, 2, 4])
def test_any_number_of_stores_draws_the_same(data: Any, num_stores: int, tmp_path: Path) -> None:
    graph = in_parts(data, tmp_path, num_stores)
    here = without_parts(graph, tmp_path / "here", tuple(range(num_stores)))
    with serving(graph) as stores:
        connect: dict[int, Connect] = {
            part: partial(StoreClient.connect, address, CREDENTIALS)
            for part, address in stores.items()
        }
        for name, rule in RULES.items():
            settings = {"num_neighbors": [4, 3], "batch_size": 60, "shuffle": True, **rule}
            if "time_attr" in rule:
                settings["input_time"] = torch.arange(NUM_NODES) % 120
            wanted = NeighborLoader(data, **settings)
            loader = NeighborLoader(here, **settings, connect=connect)
            for left, right in zip(wanted, loader, strict=True):
                assert_same(left, right)
                check_drawn(data, right, rule, name)
            loader.data[0].access.stores.close()


def check_drawn(data: Any, batch: Any, rule: dict[str, Any], name: str) -> None:
    assert len(batch.e_id) > 0, name
    if "weight_attr" in rule:
        assert (data.edge_weight[batch.e_id] > 0).all(), name
    if "time_attr" in rule:
        until = (batch.input_id % 120)[batch.batch[batch.edge_index[1]]]
        assert (data.edge_time[batch.e_id] <= until).all(), name


def test_samplers_ask_stores_to_draw_by_weight(data: Any, tmp_path: Path) -> None:
    graph = in_parts(data, tmp_path, 2)
    CREDENTIALS.save(tmp_path / "keys")
    seeds = np.arange(0, NUM_NODES, 2)
    config = SamplerConfig(
        graph=graph.folder,
        node_type="node",
        seeds=Path("given"),
        seeds_per_iteration=50,
        batches_per_epoch=3,
        fanouts=tuple((edge_type, (4, 3)) for edge_type in graph.edge_types),
        weight="edge_weight",
        edge_ids=True,
    )
    with start_prefetcher([config], [seeds], time.perf_counter) as prefetcher:
        expected = [(batch.n_id.tolist(), batch.e_id.tolist()) for batch in prefetcher]
    with serving(graph) as stores:
        at = stores[1]
        told = {"task": at.task, "machine": at.machine, "host": at.host, "port": at.port}
        more = {"stores": [{"part": 1, **told}], "credentials": tmp_path / "keys", "tls": False}
        asking = SamplerConfig(**{**config.model_dump(), **more})
        with start_prefetcher([asking], [seeds], time.perf_counter) as prefetcher:
            assert [(batch.n_id.tolist(), batch.e_id.tolist()) for batch in prefetcher] == expected
    assert all((data.edge_weight[edges] > 0).all() for _, edges in expected)


@pytest.mark.parametrize("num_samplers", [1, 2])
def test_samplers_hand_over_columns_of_edges(data: Any, num_samplers: int, tmp_path: Path) -> None:
    data = data.clone()
    data.edge_half = data.edge_attr.half()
    graph = in_parts(data, tmp_path, 2)
    seeds = np.array_split(np.arange(0, NUM_NODES, 2), num_samplers)
    configs = [
        SamplerConfig(
            task=f"sampler {s}",
            graph=graph.folder,
            node_type="node",
            seeds=Path("given"),
            seeds_per_iteration=50 // num_samplers,
            batches_per_epoch=3,
            fanouts=tuple((edge_type, (4, 3)) for edge_type in graph.edge_types),
            edge_ids=True,
            edge_columns=True,
        )
        for s in range(num_samplers)
    ]
    with start_prefetcher(configs, seeds, time.perf_counter) as prefetcher:
        num_batches = 0
        for batch in prefetcher:
            num_batches += 1
            assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
            assert torch.equal(batch.edge_time, data.edge_time[batch.e_id])
            assert torch.equal(batch.edge_half, data.edge_half[batch.e_id].float())
            ends = batch.n_id[batch.edge_index]
            assert torch.equal(ends, data.edge_index[:, batch.e_id])
    assert num_batches == 3


def test_stores_refuse_columns_that_are_no_weights_or_times(data: Any, tmp_path: Path) -> None:
    graph = in_parts(data, tmp_path, 1)
    with serving(graph) as stores, StoreClient.connect(stores[0], CREDENTIALS) as client:
        nodes = np.arange(5)
        for weight, moment, problem in (
            ("nothing", None, "no edges have a column"),
            ("x", None, "no edges have a column"),
            ("edge_attr", None, "weights of"),
            (None, "edge_weight", "times of"),
            (None, "edge_time", "have times, but the seeds have none"),
        ):
            edge_type = graph.edge_types[0]
            request = HopRequest(edge_type, nodes, 3, 0, weight=weight, time=moment)
            with pytest.raises(StoreError, match=problem):
                client.sample(request)
        client.status()
