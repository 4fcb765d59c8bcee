"""Requests that nobody should send."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.sampler_worker.channels.rpc import RpcReceiver
from headrace.graph.sampling.hop import HopRequest, Rule
from headrace.graph.store.client import StoreClient
from headrace.graph.store.embedding_service import GradientPush
from headrace.rpc.client import RpcChannel
from headrace.rpc.errors import StoreError
from headrace.rpc.framing import encode_request
from tests.integration.store_service.store_process import (
    MEBIBYTE,
    NUM_SEEDS,
    RawStream,
    SamplerProcess,
    StoreProcess,
)
from tests.support.wrong_requests import (
    NUMBER,
    SAMPLER_REQUESTS,
    STORE_REQUESTS,
    all_wrong,
    problem_of,
    sampled,
)
from tests.unit.graph import small_graphs

pytestmark = pytest.mark.integration

EDGES = small_graphs.NODE_TO_NODE


@pytest.fixture(scope="module")
def rude(stores: list[StoreProcess], clients: list[StoreClient]) -> Iterator[RawStream]:
    # Whoever has opened the clients has made the rows.
    assert clients
    stream = RawStream(stores[0])
    yield stream
    stream.close()


def test_wrong_requests_are_refused_and_the_stream_lives(rude: RawStream) -> None:
    for what, data in sampled(all_wrong(STORE_REQUESTS)):
        _refused(rude, what, data)


def _refused(stream: RawStream, what: str, data: bytes) -> None:
    stream.send(data)
    reply = stream.receive()
    assert problem_of(reply.number, reply.fields, len(reply.arrays)) is None, what


class Fed:
    """A trainer that a sampler feeds, and somebody beside it who has the token too."""

    def __init__(self, sampler: SamplerProcess) -> None:
        self.receiver = RpcReceiver(RpcChannel(sampler.address, sampler.client_credentials))
        self.seen: list[tuple[int, int]] = []
        self.take()
        self.rude = RawStream(sampler)

    def take(self) -> None:
        part = self.receiver.receive()
        self.seen.append((part.epoch, part.batch))


@pytest.fixture(scope="package")
def fed(samplers: list[SamplerProcess]) -> Iterator[Fed]:
    made = Fed(samplers[0])
    yield made
    made.rude.close()
    # Not sooner: a sampler whose trainer has enough ends, and others need it.
    made.receiver.close()


def test_wrong_requests_are_refused_while_a_trainer_is_fed(fed: Fed) -> None:
    for what, data in sampled(all_wrong(SAMPLER_REQUESTS)):
        _refused(fed.rude, what, data)
        fed.take()


def test_parts_are_for_one_trainer_alone(fed: Fed, samplers: list[SamplerProcess]) -> None:
    before = samplers[0].memory_bytes
    for _ in range(20):
        second = RawStream(samplers[0])
        second.send(encode_request(NUMBER, {"op": "next"}, []))
        assert second.receive().fields["problem"] == "this sampler already has a trainer"
        second.close()
        fed.take()
    assert samplers[0].memory_bytes - before < 64 * MEBIBYTE
    per_epoch = NUM_SEEDS // 8
    expected = [divmod(number, per_epoch) for number in range(len(fed.seen))]
    assert fed.seen == expected, "somebody else got parts"


def test_values_that_would_spoil_an_embedding_are_refused(
    graph: PartitionedGraph, clients: list[StoreClient]
) -> None:
    ids = np.arange(3) + graph.part(0).start("node")
    before = clients[0].gather("node", "spare", ids)
    for wrong in (np.nan, np.inf, -np.inf):
        gradients = np.zeros((3, 6), np.float32)
        gradients[2, 5] = wrong
        with pytest.raises(StoreError, match="not finite"):
            clients[0].push(
                "node", "spare", GradientPush(0, 1, 0, 1, True, 1.0, ids, gradients)
            ).result()
        with pytest.raises(StoreError, match="not finite"):
            clients[0].put("node", "spare", ids, [gradients], 1).result()
    for wrong_ids in (ids[::-1], ids[[0, 0, 1]]):
        gradient_push = GradientPush(0, 1, 0, 1, True, 1.0, wrong_ids, np.ones((3, 6), np.float32))
        with pytest.raises(StoreError, match="not ascending"):
            clients[0].push("node", "spare", gradient_push).result()
    np.testing.assert_array_equal(clients[0].gather("node", "spare", ids), before)


def test_a_reply_that_would_be_too_large_is_not_begun(
    graph: PartitionedGraph, clients: list[StoreClient]
) -> None:
    nodes = np.full(4000, graph.part(0).start("node"))
    request = HopRequest(EDGES, nodes, 2**20, key=0, rule=Rule(replace=True))
    with pytest.raises(StoreError, match="a reply has at most"):
        clients[0].sample(request)
