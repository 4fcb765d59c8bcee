"""Two stores, samplers and parameter servers, with TLS and without, for tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.graph.store.client import StoreClient
from headrace.graph.store.embedding_table import EmbeddingSpec
from tests.integration.store_service.store_process import (
    MEBIBYTE,
    SamplerProcess,
    ServerProcess,
    ServingProcess,
    StoreProcess,
    running,
)
from tests.unit.graph import small_graphs

LIMITS = {
    "max_rows": 4000,
    "max_request_bytes": 8 * MEBIBYTE,
    "max_reply_bytes": 8 * MEBIBYTE,
    "max_streams": 40,
    "handshake_s": 2.0,
    "idle_s": 120.0,
    "stall_s": 2.0,
}
PROTECTIONS = ("tls", "plain")
EMBEDDING = EmbeddingSpec(dim=6, optimizer="sgd")


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "parts"
    small_graphs.write(small_graphs.homogeneous(2000, 20_000), path, num_parts=2)
    return path


@pytest.fixture(scope="package")
def graph(folder: Path) -> PartitionedGraph:
    return open_graph(folder)


@pytest.fixture(scope="package")
def stores(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[StoreProcess]]:
    """Two stores, one with TLS and one without."""
    base = tmp_path_factory.mktemp("stores")
    with (
        running(base / "a", folder, 0, limits=LIMITS) as first,
        running(base / "b", folder, 1, tls=False, limits=LIMITS) as second,
    ):
        yield [first, second]


@pytest.fixture(scope="package")
def samplers(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[SamplerProcess]]:
    """Two samplers that wait for trainers, one with TLS and one without."""
    base = tmp_path_factory.mktemp("samplers")
    limits = {**LIMITS, "max_request_bytes": 1 << 16}
    opened = [SamplerProcess(base / name, folder, name == "tls", limits) for name in PROTECTIONS]
    for sampler in opened:
        sampler.await_rest()
    yield opened
    for sampler in opened:
        sampler.stop()


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    """Two parameter servers, one with TLS and one without."""
    base = tmp_path_factory.mktemp("servers")
    opened = [ServerProcess(base / name, name == "tls", LIMITS) for name in PROTECTIONS]
    yield opened
    for server in opened:
        server.stop()


@pytest.fixture
def serving(
    request: pytest.FixtureRequest,
    stores: list[StoreProcess],
    samplers: list[SamplerProcess],
    servers: list[ServerProcess],
) -> ServingProcess:
    """One of all that listen; see `every_endpoint`."""
    kind, protection = request.param
    processes: dict[str, Sequence[ServingProcess]]
    processes = {"store": stores, "sampler": samplers, "ps": servers}
    return processes[kind][PROTECTIONS.index(protection)]


@pytest.fixture(scope="package")
def clients(stores: list[StoreProcess]) -> Iterator[list[StoreClient]]:
    opened = [store.connect() for store in stores]
    for client in opened:
        for column in ("emb", "spare"):
            client.embed("node", column, EMBEDDING).result()
    yield opened
    for client in opened:
        client.close()
