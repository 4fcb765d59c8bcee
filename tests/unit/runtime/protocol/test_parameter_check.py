"""Trainers that train different models are told apart after their first steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.core.job import Role
from headrace.policies.lifecycle.events import Event, Failed, Task
from headrace.policies.recovery.deciding import Recovery
from headrace.runtime.callbacks.base import RunCallback
from headrace.runtime.controller.failure_handling import FailureHandler
from headrace.runtime.controller.health import Watch
from headrace.runtime.protocol import parameter_check
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.protocol.parameter_check import (
    ParameterCheck,
    checksum_of,
    num_unused,
    send_parameters,
    values_of,
)
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.protocol.trainer_messages import Inbox, Note, ParameterChecksum

torch = pytest.importorskip("torch")

TASKS = (Task("trainer0", Role.TRAINER, "m0"), Task("trainer1", Role.TRAINER, "m1"))


def said(checksum: int, step: int = 1, optimizer: int = 0) -> ParameterChecksum:
    return ParameterChecksum(optimizer, step, checksum, [0.5, 0.01 * checksum])


def test_equal_parameters_are_fine_in_any_order() -> None:
    check = ParameterCheck()
    for task in ("trainer0 on m0", "trainer1 on m1"):
        for step in (1, 2):
            for optimizer in (0, 1):
                assert check.update(task, said(10 * optimizer + step, step, optimizer)) is None


def test_different_parameters_are_a_failure_that_names_both_and_says_what_helps() -> None:
    check = ParameterCheck()
    assert check.update("trainer0 on m0", said(1)) is None
    found = check.update("trainer1 on m1", said(2))
    assert isinstance(found, Failed)
    assert found.problem.startswith("trainer0 on m0 and trainer1 on m1 train different models")
    for help_ in ("ctx.prepare(model", "DistributedDataParallel(model)", "--independent"):
        assert help_ in found.remedy


def test_parameters_without_gradients_have_their_own_remedy() -> None:
    check = ParameterCheck()
    assert check.update("trainer0 on m0", said(1)) is None
    found = check.update("trainer1 on m1", replace(said(2), num_unused=3))
    assert isinstance(found, Failed)
    assert "3 parameters have no gradient" in found.problem
    assert "find_unused_parameters=True" in found.remedy
    used, unused = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*used.parameters(), *unused.parameters()], lr=0.1)
    used(torch.ones(1, 2)).sum().backward()
    assert num_unused(optimizer) == 2


def test_parameters_that_were_rounded_differently_are_one_model() -> None:
    check = ParameterCheck()
    for checksum, value in enumerate((0.25, 0.25 * (1 + 1e-6))):
        message = replace(said(checksum), values=[1.0, value])
        assert check.update(f"trainer{checksum}", message) is None
    message = replace(said(3), values=[1.0, 0.2501])
    other = ParameterCheck()
    assert other.update("trainer0", replace(said(1), values=[1.0, 0.25])) is None
    found = other.update("trainer1", message)
    assert isinstance(found, Failed)
    assert "differ by up to 0.0001 after step 1" in found.problem


@pytest.mark.parametrize("sizes", [(1,), (3, 200), (5,) * 100])
def test_some_values_of_all_parameters_are_sent(sizes: tuple[int, ...]) -> None:
    parameters = [torch.nn.Parameter(torch.arange(float(size))) for size in sizes]
    found = values_of(torch.optim.SGD(parameters))
    assert min(len(sizes), 64) <= len(found) <= 64
    complex_ = torch.nn.Parameter(torch.tensor([3 + 4j]))
    assert values_of(torch.optim.SGD([complex_])) == [5.0]


def watch(parameters: ParameterCheck | None) -> tuple[Watch, list[Event], list[str]]:
    told: list[Event] = []
    lines: list[str] = []

    class Says(RunCallback):
        def log(self, line: str) -> None:
            lines.append(line)

    slots = {task.name: SimpleNamespace(task=task) for task in TASKS}
    worker_group: Any = SimpleNamespace(tasks=TASKS, slot=slots.__getitem__)
    nobody: Any = None
    mender = FailureHandler(Recovery(frozenset({"m0", "m1"})), lambda state, decision: None)
    made = Watch(
        worker_group, nobody, nobody, Says(), mender, nobody, told.append, parameters=parameters
    )
    return made, told, lines


@pytest.mark.parametrize("independent", [False, True])
def test_a_run_with_different_models_fails_unless_they_are_independent(independent: bool) -> None:
    made, told, _ = watch(None if independent else ParameterCheck())
    for number, name in enumerate(("trainer0", "trainer1")):
        made.update(name, ActorState(messages=(said(number),)), 0.0)
    assert [type(event) for event in told] == ([] if independent else [Failed])


def test_what_a_trainer_notes_is_said() -> None:
    made, _, lines = watch(None)
    made.update("trainer1", ActorState(messages=(Note("mind this"),)), 0.0)
    assert lines == ["trainer1 on m1: mind this"]


def steps(seed: int, num: int) -> None:
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(num):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()


def test_a_trainer_says_what_its_parameters_are_after_two_steps_of_each_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameter_check, "_watched", set())
    inbox = Inbox(tmp_path / "messages")
    run = RunContext(machine="m0", messages=tmp_path / "messages", world_size=2)
    handle = send_parameters(run)
    assert handle is not None
    assert send_parameters(run) is None
    try:
        for seed in (0, 0, 1):
            steps(seed, 4)
    finally:
        handle.remove()
    found = [each for each in inbox.receive(1.0) if isinstance(each, ParameterChecksum)]
    inbox.close()
    assert [(each.optimizer, each.step) for each in found] == [
        (0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2),
    ]  # fmt: skip
    sums = [each.checksum for each in found]
    assert sums[:2] == sums[2:4]
    assert len(set(sums)) == 4


def test_the_only_trainer_says_nothing(tmp_path: Path) -> None:
    assert send_parameters(RunContext(machine="m0", messages=tmp_path / "messages")) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_one_changed_number_changes_the_checksum(dtype: Any) -> None:
    values = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).to(dtype).t())
    optimizer = torch.optim.SGD([values], lr=0.1)
    before = checksum_of(optimizer)
    assert checksum_of(optimizer) == before
    with torch.no_grad():
        values[1, 1] += 1
    assert checksum_of(optimizer) != before
