"""A parameter server and those who may ask it: trainers, and whoever has stolen their token."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headrace.rpc.config import TaskAddress  # noqa: E402
from headrace.rpc.credentials import Credentials, Secret  # noqa: E402
from headrace.rpc.errors import StoreError  # noqa: E402
from headrace.rpc.framing import encode_request  # noqa: E402
from headrace.training.parameter_server.client import Servers  # noqa: E402
from headrace.training.parameter_server.optimizer_specs import options_of  # noqa: E402
from headrace.training.parameter_server.remote_optimizer import RemoteOptimizer  # noqa: E402
from headrace.training.parameter_server.types import Exchange  # noqa: E402
from tests.integration.store_service.store_process import RawStream, ServerProcess  # noqa: E402
from tests.support.wrong_requests import (  # noqa: E402
    NUMBER,
    SERVER_PIECES,
    all_wrong,
    problem_of,
    sampled,
    server_begin,
    server_requests,
)
from tests.unit.training.parameter_server.in_process import together  # noqa: E402

pytestmark = pytest.mark.integration

OPTIONS = options_of(torch.optim.SGD([torch.ones(1)], lr=0.5, momentum=0.9))
BEGIN, PIECES = server_begin(OPTIONS), SERVER_PIECES


@pytest.fixture(scope="module")
def rude(servers: list[ServerProcess]) -> Iterator[RawStream]:
    stream = RawStream(servers[0])
    yield stream
    stream.close()


def test_wrong_requests_are_refused_and_the_stream_lives(rude: RawStream) -> None:
    for what, data in sampled(all_wrong(server_requests(OPTIONS))):
        rude.send(data)
        reply = rude.receive()
        assert problem_of(reply.number, reply.fields, len(reply.arrays)) is None, what


def test_a_right_request_is_answered_after_all_that(rude: RawStream) -> None:
    rude.send(encode_request(NUMBER, BEGIN, PIECES))
    np.testing.assert_array_equal(rude.receive().arrays[0], PIECES[2])


def reach(
    servers: list[ServerProcess], rank: int, credentials: Credentials, **more: Any
) -> Servers:
    places = [
        TaskAddress(task="ps0", machine="m7", host="127.0.0.1", port=server.port)
        for server in servers
    ]
    return Servers.connect(places, credentials, rank, time.monotonic, 60.0, **more)


@pytest.mark.parametrize("which", [0, 1], ids=["tls", "plain"])
def test_two_trainers_step_together(servers: list[ServerProcess], which: int) -> None:
    server, told = servers[which], list[Exchange]()

    def train(rank: int) -> list[Any]:
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        record = told.extend if rank == 0 else None
        reached = reach([server], rank, server.client_credentials, record=record)
        RemoteOptimizer(optimizer, reached, 0, lambda: 0.5)
        for step in range(5):
            optimizer.zero_grad()
            model(torch.full((1, 3), float(rank + step))).sum().backward()
            optimizer.step()
        found = [parameter.detach().clone() for parameter in model.parameters()]
        kept = optimizer.state_dict()["state"]
        assert {float(each["step"]) for each in kept.values()} == {5.0}
        reached.close()
        return found

    first, second = together(2, train)
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    assert [each.iteration for each in told] == list(range(5))
    for each in told:
        assert each.start_s < each.end_s
        assert 0 < each.held_s <= each.end_s - each.start_s
        assert each.got_bytes > 4 * 8


def test_whoever_has_another_token_is_told_so(servers: list[ServerProcess]) -> None:
    own = servers[0].client_credentials
    with pytest.raises(StoreError, match="ps0 on m7 rejected this client: the token") as caught:
        reach(servers[:1], 0, Credentials(Secret.random(), own.identity))
    assert own.token.reveal().decode() not in str(caught.value)


def test_steps_are_recorded_and_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "own", True, {})
    stream = RawStream(server)
    stream.send(encode_request(NUMBER, BEGIN, PIECES))
    stream.receive()
    for rank in (0, 1):
        fields = {"op": "gradients", "model": 7, "rank": rank, "step": 1, "iteration": 4}
        arrays: list[np.ndarray] = [PIECES[2], np.array([True, True])]
        stream.send(encode_request(NUMBER, fields, arrays))
        stream.receive()
    stream.close()
    server.stop()
    assert server.process.returncode == 0
    ((what, task, n, start_s, end_s),) = map(
        json.loads, (tmp_path / "own" / "trace").read_text().splitlines()
    )
    assert (what, task, n) == ("exec", "ps0", 4)
    assert start_s <= end_s
