"""Graph access of a sampler process: local partitions mapped, remote ones via stores, cached."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.graph.loader.graph_view import PartitionedGraphView
from headrace.graph.sampler_worker.config import CacheConfig, SamplerConfig, StoreAddress
from headrace.graph.sampler_worker.feature_cache import (
    CachedStoreHandle,
    CacheReport,
    FeatureCache,
    divide,
    hot_by_degree,
)
from headrace.graph.sampling.store_pool import StoreHandle
from headrace.graph.schema import TypeName
from headrace.graph.store.client import TIMEOUT_S, StoreClient
from headrace.rpc import service_process
from headrace.rpc.call_meter import Clock, measured_store
from headrace.rpc.credentials import Credentials
from headrace.rpc.reconnect import RetryBudget, reach_store

Caches = Mapping[tuple[TypeName, str], FeatureCache]


def open_access(
    config: SamplerConfig, clock: Clock | None = None, retry_budget: RetryBudget | None = None
) -> tuple[PartitionedGraphView, Caches]:
    """Open a graph and connect to the stores of remote graph partitions.

    With a `clock`, store requests are recorded in the trace of the sub-batch that sends them.
    Without a `retry_budget`, requests fail when a store is lost.
    """
    graph = open_graph(config.graph)
    if not config.stores:
        return PartitionedGraphView(graph), {}
    caches = {} if config.cache is None else make_caches(graph, config, config.cache)
    credentials = load_credentials(config)
    connect = {
        store.part: partial(_connect, store, credentials, caches, clock, retry_budget)
        for store in config.stores
    }
    access = PartitionedGraphView(graph, connect)
    # Connect in one thread: several would open several connections to the same store.
    for part in access.stores.parts:
        access.stores.handle(part)
    return access, caches


def make_caches(graph: PartitionedGraph, config: SamplerConfig, cache: CacheConfig) -> Caches:
    """Empty caches for all node columns with more than one value per row."""
    fanouts: dict[TypeName, int] = {
        edge_type: hops[0] for edge_type, hops in config.fanouts if hops
    }
    hot: dict[str, np.ndarray] = {}
    if cache.policy == "degree":
        if cache.home is None:
            raise SpecError("cache policy `degree` needs `home`", "set `home` to a partition")
        for name in graph.node_types:
            hot[name] = hot_by_degree(graph, cache.home, name, fanouts)
    columns = {
        (node.name, column.name): (column, node.num_nodes)
        for node in graph.manifest.nodes
        for column in node.columns
        if column.shape and _is_wanted(config, node.name, column.name)
    }
    sizes = [math.ceil(num * column.row_bytes) for column, num in columns.values()]
    budgets = divide(cache.num_bytes, sizes)
    return {
        (name, column): FeatureCache(info, num, budget, hot.get(name))
        for ((name, column), (info, num)), budget in zip(columns.items(), budgets, strict=True)
    }


def report(caches: Caches) -> CacheReport:
    """Sum the reports of all caches."""
    return sum((cache.report() for cache in caches.values()), CacheReport())


def load_credentials(config: SamplerConfig) -> Credentials:
    """Load the credentials; raise `SpecError` if they or the TLS certificate are missing."""
    if config.credentials is None:
        raise SpecError("remote stores and trainers need credentials", "set `credentials`")
    return service_process.load_credentials(config.credentials, config.tls)


def _is_wanted(config: SamplerConfig, node_type: str, name: str) -> bool:
    return config.columns is None or any(
        (wanted.node_type, wanted.name, wanted.seeds_only) == (node_type, name, False)
        for wanted in config.columns
    )


def _connect(
    store: StoreAddress,
    credentials: Credentials,
    caches: Caches,
    clock: Clock | None,
    retry_budget: RetryBudget | None,
) -> StoreHandle:
    channel = reach_store(store, credentials, TIMEOUT_S, retry_budget)
    if clock is not None:
        channel = measured_store(channel, store.task, clock)
    client = StoreClient(channel)
    return CachedStoreHandle(client, caches) if caches else client
