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


ADAM = options_of(torch.optim.Adam([torch.ones(1)], lr=0.5))


def begin_adam(ask: Ask, **changes: Any) -> None:
    for rank in (0, 1):
        options = [{**ADAM[0], **changes}]
        fields = {**BEGIN, "rank": rank, "optimizer": "Adam", "options": options}
        ask(fields, *PIECES, *([] if rank else [VALUES]))


@pytest.mark.parametrize(
    ("optimizer", "changes"),
    [
        ("SGD", {"lr": -1.0}),
        ("SGD", {"nesterov": True}),
        ("Adam", {"betas": [1.0, 0.999]}),
        ("Adam", {"betas": [0.9, 1 - 1e-17]}),
        ("Adadelta", {"rho": 2}),
        ("Rprop", {"etas": [1.5, 1.2]}),
        ("ASGD", {"lambd": 1e29, "alpha": 1e29}),
    ],
)
def test_options_outside_their_domain_are_refused(
    ask: Ask, operations: ParameterService, optimizer: str, changes: dict[str, Any]
) -> None:
    right = options_of(getattr(torch.optim, optimizer)([torch.ones(1)], lr=0.5))
    wrong = [{**right[0], **changes}]
    begin = {**BEGIN, "optimizer": optimizer}
    with pytest.raises(SpecError, match=f"{optimizer} does not work with these options"):
        ask({**begin, "options": wrong}, *PIECES, VALUES)
    assert operations._models == {}
    for rank in (0, 1):
        fields = {**begin, "options": right, "rank": rank}
        ask(fields, *PIECES, *([] if rank else [VALUES]))
    gradients = np.ones(3, np.float32)
    with pytest.raises(SpecError, match=f"{optimizer} does not work with these options"):
        ask({**STEP, "options": wrong}, gradients, HAS)
    wait = {"op": "wait", "model": 0, "step": 0}
    np.testing.assert_array_equal(ask(wait).arrays[0], VALUES)
    assert ask({**wait, "step": 1}).fields["missing"] == [0, 1]
    # The right options are accepted, and the step is made.
    ask({**STEP, "options": right}, gradients, HAS)
    assert len(ask({**STEP, "rank": 1}, gradients, HAS).arrays) == 1


def test_a_refused_begin_registers_nothing(ask: Ask, operations: ParameterService) -> None:
    with pytest.raises(SpecError, match="wrong shape"):
        ask(BEGIN, *PIECES, VALUES[:2])
    assert operations._models == {}


def test_state_that_is_loaded_in_part_stops_no_step_half_way(ask: Ask) -> None:
    begin_adam(ask)
    load = {"op": "load", "model": 0, "name": "exp_avg"}
    with pytest.raises(SpecError, match="Adam has no state 'momentum_buffer'"):
        ask({**load, "name": "momentum_buffer"}, VALUES, HAS)
    with pytest.raises(SpecError, match="step is not finite or below 0"):
        ask({**load, "name": "step"}, np.array([-1.0, 1.0]), HAS)
    ask(load, VALUES, HAS)
    gradients = np.ones(3, np.float32)
    assert ask({**STEP, "rank": 1}, gradients, HAS).fields["missing"] == [0]
    with pytest.raises(SpecError, match="state of Adam has no exp_avg_sq, step"):
        ask({**STEP, "options": ADAM}, gradients, HAS)
    np.testing.assert_array_equal(ask({"op": "wait", "model": 0, "step": 0}).arrays[0], VALUES)
    ask({**load, "name": "exp_avg_sq"}, VALUES, HAS)
    ask({**load, "name": "step"}, np.array([3.0, 3.0]), HAS)
    (found,) = ask({**STEP, "options": ADAM}, gradients, HAS).arrays
    assert np.isfinite(found).all()
    assert (found != VALUES).all()


def test_the_last_push_is_refused_too_if_the_state_has_gone(ask: Ask) -> None:
    begin_adam(ask)
    gradients = np.ones(3, np.float32)
    ask({**STEP, "options": ADAM}, gradients, HAS)
    ask({"op": "load", "model": 0, "name": "exp_avg"}, VALUES, HAS)
    with pytest.raises(SpecError, match="state of Adam has no"):
        ask({**STEP, "rank": 1}, gradients, HAS)
    ask({"op": "forget", "model": 0})
    assert len(ask({**STEP, "rank": 1}, gradients, HAS).arrays) == 1


def test_a_step_that_fails_anyway_gives_no_parameters(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_adam(ask)

    def fail(optimizer: object) -> None:
        raise ZeroDivisionError

    gradients = np.ones(3, np.float32)
    ask(STEP, gradients, HAS)
    monkeypatch.setattr(torch.optim.Adam, "step", fail)
    with pytest.raises(SpecError, match="Adam failed in step 1"):
        ask({**STEP, "rank": 1}, gradients, HAS)
    monkeypatch.undo()
    for request in ({"op": "wait", "model": 0, "step": 0}, {"op": "names", "model": 0}):
        with pytest.raises(SpecError, match="Adam failed in step 1"):
            ask(request)
