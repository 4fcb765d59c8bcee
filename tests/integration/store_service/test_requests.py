"""Requests that nobody should send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace.graph.hops import HopRequest, Rule
from headrace.graph.opening import PartitionedGraph
from headrace.graph.service.client import StoreClient
from headrace.graph.service.errors import StoreError
from tests.integration.store_service.hostile import NUMBER, hostile_requests
from tests.integration.store_service.store_process import (
    RawStream,
    StoreProcess,
)
from tests.unit.graph import small_graphs

pytestmark = pytest.mark.integration

EDGES = small_graphs.NODE_TO_NODE

_NODES = np.array([1, 2, 3])
_SAMPLE = {
    "op": "sample", "edge_type": list(EDGES), "fanout": 3, "key": 5, "replace": False,
    "disjoint": False, "last": False, "edge_ids": True, "has_trees": False, "has_bounds": False,
}  # fmt: skip
_FLAGS = ("replace", "disjoint", "edge_ids")
REQUESTS: dict[str, tuple[dict[str, Any], list[np.ndarray], dict[str, set[str]]]] = {
    "sample": (
        _SAMPLE,
        [_NODES],
        {"fanout": {"a number"}, "key": {"a number"}, **{flag: {"true"} for flag in _FLAGS}},
    ),
    "gather": (
        {"op": "gather", "of": "node", "column": "x", "has_dims": True},
        [_NODES, np.array([0, 1])],
        {"column": {"a text"}, "has_dims": {"true"}},
    ),
    "push": (
        {"op": "push", "of": "node", "column": "emb"},
        [_NODES, np.ones((3, 6), np.float32)],
        {},
    ),
    "status": ({"op": "status"}, [], {}),
    "ping": ({"op": "ping"}, [], {}),
}
HOSTILE = [
    pytest.param(data, id=f"{operation}: {what}")
    for operation, (fields, arrays, valid) in REQUESTS.items()
    for what, data in hostile_requests(fields, arrays, valid)
]


def test_the_table_is_long_enough() -> None:
    for fields, arrays, valid in REQUESTS.values():
        assert len(list(hostile_requests(fields, arrays, valid))) >= 50


@pytest.fixture(scope="module")
def rude(stores: list[StoreProcess]) -> Iterator[RawStream]:
    stream = RawStream(stores[0])
    yield stream
    stream.close()


@pytest.mark.parametrize("data", HOSTILE)
def test_a_wrong_request_is_refused_and_the_stream_lives(rude: RawStream, data: bytes) -> None:
    rude.send(data)
    reply = rude.receive()
    assert reply.number in (0, NUMBER)
    assert reply.fields["problem"]
    assert reply.fields["problem"] != "the store failed to answer"
    assert not reply.arrays


def test_values_that_would_spoil_an_embedding_are_refused(
    graph: PartitionedGraph, clients: list[StoreClient]
) -> None:
    ids = np.arange(3) + graph.part(0).start("node")
    before = clients[0].gather("node", "emb", ids)
    for wrong in (np.nan, np.inf, -np.inf):
        gradients = np.zeros((3, 6), np.float32)
        gradients[2, 5] = wrong
        with pytest.raises(StoreError, match="not finite"):
            clients[0].push("node", "emb", ids, gradients)
    np.testing.assert_array_equal(clients[0].gather("node", "emb", ids), before)


def test_a_reply_that_would_be_too_large_is_not_begun(
    graph: PartitionedGraph, clients: list[StoreClient]
) -> None:
    nodes = np.full(4000, graph.part(0).start("node"))
    request = HopRequest(EDGES, nodes, 2**20, key=0, rule=Rule(replace=True))
    with pytest.raises(StoreError, match="a reply has at most"):
        clients[0].sample(request)
