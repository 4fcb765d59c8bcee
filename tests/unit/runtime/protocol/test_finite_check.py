"""Gradients and losses that are infinite or not a number end a run, and name who had them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import NotFiniteError
from headrace.policies.lifecycle.events import Failed
from headrace.runtime.protocol import finite_check
from headrace.runtime.protocol.finite_check import FiniteCheck, GradientCheck, watch_gradients
from headrace.runtime.protocol.run_context import CONTEXT_VARIABLE, RunContext, current_run
from headrace.runtime.protocol.trainer_messages import Inbox, NonFinite
from headrace.runtime.trainer.report import report

torch = pytest.importorskip("torch")


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    made = Inbox(tmp_path / "messages")
    yield made
    made.close()


def run_of(folder: Path, **fields: Any) -> RunContext:
    return RunContext(machine="m0", messages=folder / "messages", **fields)


def step(value: float, model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    (model(torch.ones(4, 3)).sum() * value).backward()
    optimizer.step()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_step_of_infinite_gradients_is_not_made(
    value: float, tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite_check, "_watched", {})
    (tmp_path / "run.json").write_text(run_of(tmp_path).model_dump_json())
    monkeypatch.setenv(CONTEXT_VARIABLE, str(tmp_path / "run.json"))
    run = current_run()
    assert run is not None
    handle = watch_gradients(run)
    assert handle is not None
    assert watch_gradients(run) is None
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    try:
        step(1.0, model, optimizer)
        before = [parameter.clone() for parameter in model.parameters()]
        with pytest.raises(NotFiniteError, match=r"gradients are infinite .* in step 2"):
            step(value, model, optimizer)
    finally:
        handle.remove()
    assert all(map(torch.equal, before, model.parameters()))
    (message,) = inbox.receive(1.0)
    assert message == NonFinite("gradients", 2, True)


def test_large_gradients_and_scaled_ones_are_fine(tmp_path: Path) -> None:
    check = GradientCheck(run_of(tmp_path))
    parameters = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    parameters[0].grad = torch.full((3,), 1e38)
    check.check(parameters)
    check.check([])


def test_rows_of_embeddings_are_looked_at_too(tmp_path: Path) -> None:
    check = GradientCheck(run_of(tmp_path, world_size=2))
    table = torch.nn.Embedding(5, 2, sparse=True)
    check.hook(table.parameters())
    table(torch.tensor([1, 1])).sum().backward()
    check.check(table.parameters())
    table.zero_grad()
    (table(torch.tensor([1, 3])) * torch.tensor([[1.0], [float("nan")]])).sum().backward()
    with pytest.raises(NotFiniteError):
        check.check(table.parameters())


@pytest.mark.parametrize("is_own", [True, False])
def test_whoever_computed_them_is_told_from_whoever_got_them(
    is_own: bool, tmp_path: Path, inbox: Inbox
) -> None:
    check = GradientCheck(run_of(tmp_path, world_size=2))
    parameter = torch.nn.Parameter(torch.ones(3))
    check.hook([parameter])
    (parameter.sum() * (float("nan") if is_own else 1.0)).backward()
    # As after the gradients of all trainers were added.
    parameter.grad = torch.full((3,), float("nan"))
    with pytest.raises(NotFiniteError):
        check.check([parameter])
    (message,) = inbox.receive(1.0)
    assert isinstance(message, NonFinite)
    assert message.is_own is is_own


def test_nothing_is_looked_at_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite_check, "_watched", {})
    assert watch_gradients(run_of(tmp_path, allow_nan=True)) is None


@pytest.mark.parametrize("allow_nan", [True, False])
def test_a_reported_loss_must_be_finite(
    allow_nan: bool, tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.json").write_text(run_of(tmp_path, allow_nan=allow_nan).model_dump_json())
    monkeypatch.setenv(CONTEXT_VARIABLE, str(tmp_path / "run.json"))
    report(epoch=1, loss=0.5, val_auc=float("nan"))
    if allow_nan:
        report(loss=float("nan"))
    else:
        with pytest.raises(NotFiniteError, match="the reported loss is infinite"):
            report(loss=float("nan"))
    found = [message for message in inbox.receive(1.0) if isinstance(message, NonFinite)]
    assert found == ([] if allow_nan else [NonFinite("the reported loss", None, True)])


def said(is_own: bool) -> NonFinite:
    return NonFinite("gradients", 7, is_own)


def test_the_run_names_the_trainer_that_had_them_first() -> None:
    check = FiniteCheck()
    assert check.update("trainer0 on m0", said(False), 10.0) is None
    assert check.poll(10.5) is None
    found = check.update("trainer1 on m1", said(True), 10.6)
    assert isinstance(found, Failed)
    assert found.problem == "trainer1 on m1: gradients are infinite or not a number in step 7"
    assert "--allow-nan" in found.remedy


def test_the_run_names_all_if_nobody_was_the_first() -> None:
    check = FiniteCheck()
    for name in ("trainer0 on m0", "trainer1 on m1"):
        assert check.update(name, said(False), 10.0) is None
    found = check.poll(13.0)
    assert isinstance(found, Failed)
    assert found.problem.startswith("trainer0 on m0, trainer1 on m1: gradients")


def test_parameters_that_the_loss_does_not_use_have_no_gradient_to_look_at(tmp_path: Path) -> None:
    class First(torch.autograd.Function):  # type: ignore[misc, name-defined]
        """The first of two tensors, as the outputs of a wrapped model that a loss uses."""

        @staticmethod
        def forward(ctx: Any, one: Any, two: Any) -> Any:
            return one.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient, None

    used, unused = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    check = GradientCheck(run_of(tmp_path, world_size=2))
    check.hook([used, unused])
    First.apply(used, unused).sum().backward()
    assert unused.grad is None
    check.check([used, unused])
