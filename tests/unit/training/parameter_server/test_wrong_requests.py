"""A parameter server's handlers refuse every wrong request, without the wire in between."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headrace.rpc.config import RpcLimits  # noqa: E402
from headrace.rpc.framing import encode_request  # noqa: E402
from headrace.rpc.server import answer  # noqa: E402
from headrace.training.parameter_server.optimizer_specs import options_of  # noqa: E402
from headrace.training.parameter_server.service import ParameterService  # noqa: E402
from tests.support.wrong_requests import (  # noqa: E402
    NUMBER,
    SERVER_PIECES,
    hostile_requests,
    problem_of,
    server_begin,
    server_requests,
)

LIMITS = RpcLimits(max_rows=4000, max_request_bytes=8 << 20, max_reply_bytes=8 << 20)
OPTIONS = options_of(torch.optim.SGD([torch.ones(1)], lr=0.5, momentum=0.9))
REQUESTS = server_requests(OPTIONS)


@pytest.mark.parametrize("operation", REQUESTS)
def test_server_refuses_wrong(operation: str) -> None:
    operations = ParameterService(2, LIMITS, lambda: 0.0, answer_s=0.0)
    fields, arrays, valid = REQUESTS[operation]
    problems, num_wrong = {}, 0
    for what, data in hostile_requests(fields, arrays, valid):
        num_wrong += 1
        reply = answer(operations, memoryview(data))
        problem = problem_of(reply.number, reply.fields, len(reply.arrays))
        if problem is not None:
            problems[what] = problem
    assert problems == {}
    assert num_wrong >= 50
    right = encode_request(NUMBER, server_begin(OPTIONS), SERVER_PIECES)
    reply = answer(operations, memoryview(right))
    np.testing.assert_array_equal(reply.arrays[0], SERVER_PIECES[2])
