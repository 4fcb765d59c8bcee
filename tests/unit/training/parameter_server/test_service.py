"""Requests to a parameter server are checked before anything is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headrace.core.errors import SpecError  # noqa: E402
from headrace.rpc.config import RpcLimits  # noqa: E402
from headrace.rpc.framing import Message  # noqa: E402
from headrace.training.parameter_server.optimizer_specs import options_of  # noqa: E402
from headrace.training.parameter_server.service import ParameterService  # noqa: E402

OPTIONS = options_of(torch.optim.SGD([torch.ones(1)], lr=0.5))
BEGIN = {
    "op": "begin", "model": 0, "rank": 0, "optimizer": "SGD", "options": OPTIONS,
    "dtype": "float32",
}  # fmt: skip
STEP = {"op": "gradients", "model": 0, "rank": 0, "step": 1, "iteration": 7, "options": None}
PIECES = [np.array([2, 1]), np.array([0, 0])]
VALUES = np.array([1, 2, 3], np.float32)
HAS = np.array([True, True])
Ask = Callable[..., Message]


@pytest.fixture
def operations() -> ParameterService:
    return ParameterService(2, RpcLimits(max_request_bytes=1 << 10), lambda: 0.0, answer_s=0.0)


@pytest.fixture
def ask(operations: ParameterService) -> Ask:
    def ask(fields: dict[str, Any], *arrays: np.ndarray) -> Message:
        return operations.answer(Message(1, fields, arrays))

    return ask


def test_a_step_waits_for_all_and_may_be_asked_again(ask: Ask) -> None:
    assert ask({**BEGIN, "rank": 1}, *PIECES).fields["missing"] == [0]
    for _ in range(2):
        (values,) = ask(BEGIN, *PIECES, VALUES).arrays
        np.testing.assert_array_equal(values, VALUES)
        np.testing.assert_array_equal(ask({**BEGIN, "rank": 1}, *PIECES).arrays[0], VALUES)
    gradients = np.array([1, 1, 1], np.float32)
    for _ in range(2):
        assert ask({**STEP, "rank": 1}, gradients, HAS).fields["missing"] == [0]
    found = ask(STEP, 3 * gradients, HAS).arrays[0].copy()
    np.testing.assert_array_equal(found, VALUES - 0.5 * 4)
    # Nothing is done twice: who asks again only lost the answer.
    for again in (STEP, {**STEP, "rank": 1}):
        np.testing.assert_array_equal(ask(again, gradients, HAS).arrays[0], found)
    wait = {"op": "wait", "model": 0, "step": 1}
    np.testing.assert_array_equal(ask(wait).arrays[0], found)
    assert ask({**wait, "step": 2}).fields["missing"] == [0, 1]


def test_a_held_step_waits_to_be_scaled(ask: Ask) -> None:
    for rank in (0, 1):
        ask({**BEGIN, "rank": rank}, *PIECES, *([] if rank else [VALUES]))
    held, gradients = {**STEP, "holds": True}, np.array([3, 0, 4], np.float32)
    scale = {"op": "scale", "model": 0, "step": 1, "factor": 0.5}
    with pytest.raises(SpecError, match="no gradients yet"):
        ask(scale)
    assert ask(held, gradients, HAS).fields["missing"] == [1]
    assert ask({**held, "rank": 1}, 0 * gradients, HAS).fields["square"] == 25
    wait = {"op": "wait", "model": 0, "step": 1, "holds": True}
    assert ask(wait).fields["square"] == 25
    with pytest.raises(SpecError):
        ask({**scale, "factor": 2.0})
    for _ in range(2):
        found = ask(scale).arrays[0]
        np.testing.assert_array_equal(found, VALUES - 0.5 * 0.5 * gradients)
    # Who is slow gets its answer although the step is over.
    assert ask(wait).fields["square"] == ask({**held, "rank": 1}, gradients, HAS).fields["square"]


def test_every_step_is_told() -> None:
    told: list[tuple[int, float, float]] = []
    times = iter(range(100))
    one = ParameterService(
        1, RpcLimits(), lambda: float(next(times)), lambda *each: told.append(each), 0.0
    )
    one.answer(Message(1, BEGIN, (*PIECES, VALUES)))
    one.answer(Message(2, STEP, (VALUES, HAS)))
    ((iteration, start_s, end_s),) = told
    # One for the sum, and one for the step.
    assert (iteration, end_s - start_s) == (7, 2.0)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"op": "push"},
        {**BEGIN, "op": None},
        {**BEGIN, "model": 10**6},
        {**BEGIN, "model": True},
        {**BEGIN, "rank": 2},
        {**BEGIN, "rank": -1},
        {**BEGIN, "optimizer": "LBFGS"},
        {**BEGIN, "options": []},
        {**BEGIN, "options": [{"lr": "os.system"}]},
        {**BEGIN, "dtype": "object"},
        {**BEGIN, "more": 1},
        {**STEP, "step": 0},
        {**STEP, "model": 1},
        {"op": "state", "model": 3, "name": "exp_avg"},
        {"op": "load", "model": 0, "name": "__class__"},
        {"op": "wait", "model": 0, "step": 0, "rank": 0},
    ],
)
def test_requests_that_make_no_sense_are_refused(ask: Ask, fields: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        ask(fields, *PIECES, VALUES)


@pytest.mark.parametrize(
    "arrays",
    [
        (),
        (*PIECES,),
        (*PIECES, VALUES, VALUES),
        (PIECES[0], PIECES[1][:1], VALUES),
        (np.array([2, -1]), PIECES[1], VALUES),
        (np.array([2, 2**40]), PIECES[1], VALUES),
        (np.array([2.0, 1.0]), PIECES[1], VALUES),
        (PIECES[0], np.array([0, 1]), VALUES),
        (*PIECES, VALUES[:2]),
        (*PIECES, VALUES.astype(np.float64)),
        (np.array([500, 500]), PIECES[1], np.zeros(1000, np.float32)),
    ],
)
def test_a_model_of_another_shape_is_refused(ask: Ask, arrays: tuple[np.ndarray, ...]) -> None:
    with pytest.raises(SpecError):
        ask(BEGIN, *arrays)
    ask({"op": "ping"})


def test_gradients_of_another_shape_or_time_are_refused(ask: Ask) -> None:
    ask(BEGIN, *PIECES, VALUES)
    for arrays in (
        (VALUES[:2], HAS),
        (VALUES, HAS[:1]),
        (VALUES, HAS.astype(np.int8)),
        (VALUES.astype(np.float64), HAS),
        (VALUES, HAS, VALUES[:1]),
        (VALUES,),
    ):
        with pytest.raises(SpecError):
            ask(STEP, *arrays)
    with pytest.raises(SpecError, match="pushed gradients of step 2, 0 are done"):
        ask({**STEP, "step": 2}, VALUES, HAS)
    with pytest.raises(SpecError, match="number of parameter groups changed"):
        ask({**STEP, "options": OPTIONS * 2}, VALUES, HAS)
    with pytest.raises(SpecError):
        ask({"op": "load", "model": 0, "name": "momentum_buffer"}, VALUES[:1], HAS)
