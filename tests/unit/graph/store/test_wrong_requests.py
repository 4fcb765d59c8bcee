"""Handlers refuse every wrong request, without the wire in between."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.sampler_worker.channels.rpc import _SubBatches
from headrace.graph.schema import Column, GraphSource, NodeTable
from headrace.graph.store.embedding_service import Embeddings
from headrace.graph.store.embedding_table import EmbeddingSpec
from headrace.graph.store.service import StoreService
from headrace.graph.store.shard import open_shard
from headrace.rpc.config import RpcLimits
from headrace.rpc.framing import Message, encode_request
from headrace.rpc.server import Service, answer
from tests.support.wrong_requests import (
    NUMBER,
    SAMPLER_REQUESTS,
    STORE_REQUESTS,
    all_wrong,
    hostile_requests,
    problem_of,
)
from tests.unit.graph import small_graphs

LIMITS = RpcLimits(max_rows=4000, max_request_bytes=8 << 20, max_reply_bytes=8 << 20)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreService:
    path = tmp_path_factory.mktemp("graph") / "parts"
    small_graphs.write(small_graphs.homogeneous(2000, 20_000), path, num_parts=2)
    shard = open_shard(open_graph(path), 0)
    embeddings = Embeddings(shard)
    embeddings.make("node", "spare", EmbeddingSpec(dim=6, optimizer="sgd"))
    return StoreService(shard, LIMITS, embeddings=embeddings)


def problems(operations: Service, requests: dict[str, bytes]) -> dict[str, str]:
    """Wrong requests that were not refused."""
    found = {}
    for what, data in requests.items():
        reply = answer(operations, memoryview(data))
        problem = problem_of(reply.number, reply.fields, len(reply.arrays))
        if problem is not None:
            found[what] = problem
    return found


@pytest.mark.parametrize("operation", STORE_REQUESTS)
def test_store_refuses_wrong(store: StoreService, operation: str) -> None:
    fields, arrays, valid = STORE_REQUESTS[operation]
    wrong = dict(hostile_requests(fields, arrays, valid))
    assert len(wrong) >= 50
    assert problems(store, wrong) == {}


@pytest.mark.parametrize("operation", STORE_REQUESTS)
def test_store_answers_the_right_request_they_are_made_from(
    store: StoreService, operation: str
) -> None:
    fields, arrays, _ = STORE_REQUESTS[operation]
    data = encode_request(NUMBER, fields, arrays)
    assert "problem" not in answer(store, memoryview(data)).fields


def test_store_refuses_the_ids_next_to_its_own(tmp_path: Path) -> None:
    small_graphs.write(small_graphs.homogeneous(200, 2000), tmp_path / "parts", num_parts=3)
    graph = open_graph(tmp_path / "parts")
    begin, end = graph.offsets("node")[1:3].tolist()
    middle = StoreService(open_shard(graph, 1), LIMITS)
    for operation in ("gather", "sample"):
        fields, (_, *rest), _ = STORE_REQUESTS[operation]
        for node, is_own in ((begin - 1, False), (begin, True), (end - 1, True), (end, False)):
            data = encode_request(NUMBER, fields, [np.array([node]), *rest])
            reply = answer(middle, memoryview(data))
            assert ("problem" not in reply.fields) == is_own, (operation, node)


def test_store_refuses_the_latest_neighbours_with_replacement(tmp_path: Path) -> None:
    src, dst = np.random.default_rng(0).integers(0, 200, (2, 2000))
    times = Column.of("time", np.arange(2000))
    edges = small_graphs.edge_table(small_graphs.NODE_TO_NODE, src, dst, (times,))
    source = GraphSource("timed", (NodeTable("node", 200, (), {}),), (edges,))
    small_graphs.write(source, tmp_path / "parts", num_parts=1)
    timed = StoreService(open_shard(open_graph(tmp_path / "parts"), 0), LIMITS)
    fields, (nodes,), _ = STORE_REQUESTS["sample"]
    fields = {**fields, "time": "time", "has_bounds": True, "last": True}
    arrays = [nodes, np.full(len(nodes), 1000)]
    right = encode_request(NUMBER, fields, arrays)
    assert "problem" not in answer(timed, memoryview(right)).fields
    wrong = encode_request(NUMBER, {**fields, "replace": True}, arrays)
    assert "with replacement" in answer(timed, memoryview(wrong)).fields["problem"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"replace": True},
        {"disjoint": True},
        {"last": True},
        {"weight": "edge_weight"},
        {"has_trees": True},
        {"far": 0.5, "near": [0, 9]},
        {"near": [0, 9]},
    ],
)
def test_store_refuses_what_labor_excludes(store: StoreService, wrong: dict[str, Any]) -> None:
    fields, arrays, _ = STORE_REQUESTS["sample"]
    fields = {**fields, "labor": True}
    right = answer(store, memoryview(encode_request(NUMBER, fields, arrays)))
    assert "problem" not in right.fields
    arrays = arrays * 2 if "has_trees" in wrong else arrays
    reply = answer(store, memoryview(encode_request(NUMBER, {**fields, **wrong}, arrays)))
    assert any(words in reply.fields["problem"] for words in ("cannot be combined", "only one of"))


def test_sampler_refuses_wrong_requests_and_those_of_stores() -> None:
    parts = _SubBatches(Queue(), threading.Semaphore(1), lambda: None)
    wrong = all_wrong(SAMPLER_REQUESTS)
    assert len(wrong) >= 100
    wrong |= {
        f"{operation} of a store": encode_request(NUMBER, fields, arrays)
        for operation, (fields, arrays, _) in STORE_REQUESTS.items()
        if operation != "ping"
    }
    assert problems(parts, wrong) == {}


def test_a_refused_model_makes_nobody_the_trainer() -> None:
    models: list[bytes] = []
    parts = _SubBatches(Queue(), threading.Semaphore(1), lambda: None, models.append)
    wrong = encode_request(NUMBER, {"op": "model"}, [np.ones(3)])
    assert "as bytes" in answer(parts, memoryview(wrong), stream=1).fields["problem"]
    right = encode_request(NUMBER, {"op": "model"}, [np.ones(3, np.uint8)])
    assert "problem" not in answer(parts, memoryview(right), stream=2).fields
    assert len(models) == 1


def test_a_handler_that_fails_is_a_refusal(store: StoreService) -> None:
    class Failing(StoreService):
        def answer(self, request: Message) -> Message:
            raise ZeroDivisionError

    failing = Failing(store._shard, LIMITS)
    data = encode_request(NUMBER, {"op": "ping"}, [])
    reply = answer(failing, memoryview(data))
    assert problem_of(reply.number, reply.fields, 0) == "the handler failed"
