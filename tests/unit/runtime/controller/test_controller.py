"""A controller mends what can be mended at once, with shells that are made up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from headrace.core.job import Role
from headrace.policies.lifecycle.events import Ended, Event, Lost, Outcome, Placed, Task, Verified
from headrace.policies.recovery.deciding import Recovery
from headrace.policies.recovery.events import Decision, GiveUp, Limits, Restart
from headrace.runtime.callbacks.base import RunCallback
from headrace.runtime.cluster.actor_system import ActorSystem
from headrace.runtime.cluster.local_actors import LocalActors
from headrace.runtime.cluster.nodes import Node
from headrace.runtime.cluster.placement_group import TaskPlacement
from headrace.runtime.controller import controller as module
from headrace.runtime.controller.code_archive import Script
from headrace.runtime.controller.controller import Controller
from headrace.runtime.controller.failure_handling import FailureHandler
from headrace.runtime.controller.signals import Interruption
from headrace.runtime.protocol.actor_state import ActorState

TASKS = (
    Task("store0", Role.STORE, "m0"),
    Task("sampler0.0", Role.SAMPLER, "m0"),
    Task("trainer0", Role.TRAINER, "m0"),
)
KILLED = {
    "code": -9,
    "pid": None,
    "how": "was ended by SIGKILL",
    "last_error": "",
    "ended_ago_s": 0.0,
}


class Method:
    """Answers at once; what it raises is the answer's error."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self._answer = answer

    def remote(self, *arguments: Any) -> Callable[[], Any]:
        return lambda: self._answer(*arguments)


class AtOnce:
    """Delivers answers when they are collected."""

    def __init__(self, system: ActorSystem) -> None:
        self._open: list[tuple[Any, Any, Any]] = []

    def __len__(self) -> int:
        return len(self._open)

    def add(self, ref: Any, then: Any, failed: Any) -> None:
        self._open.append((ref, then, failed))

    def collect(self, timeout_s: float) -> None:
        answers, self._open = self._open, []
        if not answers:
            time.sleep(timeout_s)
        for ref, then, failed in answers:
            try:
                answer = ref()
            except ConnectionError as error:
                failed(error)
            else:
                then(answer)


class Shell:
    """A task whose process is as a test says."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.calls: list[str] = []
        self.now: dict[str, Any] = {"code": None, "pid": 1}
        if task.role is Role.STORE:
            self.now |= {"ports": {"0": 100}, "starts": 1, "is_verified": True}

    def __getattr__(self, name: str) -> Method:
        return Method(lambda *arguments: self._called(name))

    def _called(self, name: str) -> Any:
        self.calls.append(name)
        if name == "state":
            if "lost" in self.now:
                raise ConnectionError
            return ActorState(**self.now)
        if name == "restart":
            self.now = {**self.now, "code": None, "pid": 2, "starts": self.now["starts"] + 1}
        if name == "kill_hung":
            self.now = {**self.now, **KILLED, "how": "hung", "is_stopped": False}
        if name == "stop":
            self.now = {**self.now, **KILLED, "code": 0}
        if name == "find_graph":
            return {"folder": "/parts", "missing": []}
        return 0


class Crew:
    """The crew of a run that nobody placed."""

    home, is_placed, system = "m0", True, LocalActors("m0")

    def __init__(self) -> None:
        self.gpus: dict[int, list[str]] = {}
        self.registrations: dict[str, Any] = {}
        self.tasks, self.names = TASKS, tuple(task.name for task in TASKS)
        self.actors = {task.name: Shell(task) for task in TASKS}
        node = Node("m0", "id0", "10.0.0.1", {})
        self.slots = {task.name: TaskPlacement(task, 0, node, {}) for task in TASKS}
        self.stores = (self.slots["store0"],)
        self.lost: set[str] = set()

    def place(
        self, calls: Any, notify: Callable[[Event], None], log: Callable[[str], None]
    ) -> None:
        notify(Placed())

    def poll(self) -> None: ...

    def close(self, timeout_s: float, log: Any = None) -> None: ...

    def slot(self, name: str) -> TaskPlacement:
        return self.slots[name]

    def actor(self, name: str) -> Shell:
        return self.actors[name]

    def machine(self, name: str) -> int:
        return 0

    def is_lost(self, name: str) -> bool:
        return name in self.lost

    def is_transient(self, error: Exception) -> bool:
        return False

    def explain(self, name: str, error: Exception) -> Event:
        self.lost.add(name)
        return Lost(name, "its Ray actor has died")

    def judge(self, fault: Ended | Lost) -> Ended | Lost:
        return Lost("m0", "all gone") if len(self.lost) == len(TASKS) else fault

    def clock_offsets(self) -> dict[str, Any]:
        return {}

    def pieces(self, task: str, log: Any, name: str) -> Iterator[bytes]:
        return iter(())

    def piece(self, task: str, name: str, offset: int) -> Any: ...


class Orders:
    """Whatever is asked for, there is nothing to say."""

    ranks: ClassVar = {0: 0}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: None

    def sampler(self, sampler: int) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {}

    def trainer(self, trainer: int) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"samplers": ["sampler0.0"]}, {}


class Files:
    folder, fingerprint = Path("/parts"), "f"
    sizes: ClassVar[dict[str, int]] = {}


class Driven:
    """A controller that runs until a test has seen enough."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, max_restarts: int) -> None:
        monkeypatch.setattr(module, "PendingActorCalls", AtOnce)
        monkeypatch.setattr(module, "_FAST_POLL_S", 0.0)
        monkeypatch.setattr(LocalActors, "poll_interval_s", 0.0)
        monkeypatch.setattr(module, "_POLL_S_PER_TASK", 0.0)
        monkeypatch.setattr("headrace.runtime.controller.failure_handling.HOLD_S", 0.05)
        self.worker_group = Crew()
        self.decisions: list[Decision] = []
        state = Recovery(frozenset({"m0"}), Limits.of(max_restarts), has_stepped=True)
        self.mender = FailureHandler(state, lambda state, decision: self.decisions.append(decision))
        self.interrupted = Interruption()

    def run(self, on_change: Callable[[str], None]) -> Outcome:
        return self.controller(on_change).run(self.interrupted)

    def controller(self, on_change: Callable[[str], None]) -> Controller:
        class Watching(RunCallback):
            def changed(self, state: Any, event: Event) -> None:
                on_change(state.phase.value)

        worker_group: Any = self.worker_group
        task_configs: Any = Orders()
        files: Any = [Files()]
        return Controller(
            worker_group,
            task_configs,
            files,
            Script((), None),
            Watching(),
            Path("none"),
            self.mender,
            lambda timeout_s: frozenset({"m0"}),
        )


def test_a_checkpoint_counts_once_its_graph_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven(monkeypatch, 3)
    controller = driven.controller(lambda phase: None)
    checkpoint: Any = SimpleNamespace(sidecar=SimpleNamespace(iteration=2))
    controller._collected(checkpoint)
    assert driven.mender.state.saved is None
    assert driven.mender.state.held == 2
    controller._emit(Verified("store0"))
    controller._process_events()
    assert driven.mender.state.saved == 2


@pytest.mark.parametrize("max_restarts", [3, 0])
def test_a_killed_store_is_started_again_if_it_may_be(
    monkeypatch: pytest.MonkeyPatch, max_restarts: int
) -> None:
    driven = Driven(monkeypatch, max_restarts)
    store, trainer = driven.worker_group.actors["store0"], driven.worker_group.actors["trainer0"]
    was_killed = False

    def on_change(phase: str) -> None:
        nonlocal was_killed
        if phase == "running" and not was_killed:
            was_killed = True
            store.now |= KILLED
        if store.calls.count("restart") and trainer.now["code"] is None:
            trainer.now = {**trainer.now, **KILLED, "code": 0, "how": "exited with code 0"}

    outcome = driven.run(on_change)
    assert outcome.is_success == bool(max_restarts)
    assert store.calls.count("restart") == (1 if max_restarts else 0)
    if max_restarts:
        assert [type(each) for each in driven.decisions] == [Restart]
    else:
        assert outcome.fault == Ended("store0", -9, "was ended by SIGKILL")
        assert isinstance(driven.mender.after(outcome, TASKS), GiveUp)


@pytest.mark.parametrize("task", ["store0", "trainer0"])
def test_a_stopped_task_is_handled_like_a_killed_one(
    monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    monkeypatch.setattr("headrace.policies.recovery.hangs.STOPPED_S", 0.01)
    driven = Driven(monkeypatch, 1)
    actors = driven.worker_group.actors

    def on_change(phase: str) -> None:
        if phase != "running":
            return
        if "kill_hung" not in actors[task].calls:
            actors[task].now["is_stopped"] = True
        elif actors["store0"].calls.count("restart"):
            actors["trainer0"].now |= {**KILLED, "code": 0}

    outcome = driven.run(on_change)
    if task == "store0":
        assert outcome.is_success
        assert [each.line for each in driven.decisions] == [
            "store0 on m0 hung: restarting it (1 of 1)"
        ]
    else:
        assert outcome.fault == Ended("trainer0", -9, "hung")


def test_a_driver_that_fails_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven(monkeypatch, 3)
    closed: list[float] = []
    monkeypatch.setattr(driven.worker_group, "close", closed.append)

    def on_change(phase: str) -> None:
        if phase == "running":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        driven.run(on_change)
    assert len(closed) == 1


class Clock:
    """A clock that may be ahead."""

    sleep, ahead_s = staticmethod(time.sleep), 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


def test_a_driver_that_did_not_listen_calls_nobody_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    driven, clock = Driven(monkeypatch, 0), Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(LocalActors, "poll_interval_s", 5.0)
    trainer = driven.worker_group.actors["trainer0"]
    phases: list[str] = []
    num_looks = 0

    def look() -> None:
        nonlocal num_looks
        num_looks += "running" in phases
        if num_looks == 3:
            clock.ahead_s = 30.0
        elif num_looks == 4:
            trainer.now = {**trainer.now, **KILLED, "code": 0, "how": "exited with code 0"}
            clock.ahead_s += 5.0

    monkeypatch.setattr(driven.worker_group, "poll", look)
    assert driven.run(phases.append).is_success


def test_samplers_are_left_to_their_trainer_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven(monkeypatch, 1)
    sampler = driven.worker_group.actors["sampler0.0"]
    seen = 0

    def on_change(phase: str) -> None:
        nonlocal seen
        if phase == "running":
            seen += 1
            sampler.now = {**sampler.now, **KILLED}
            if seen in (20, 40):
                sampler.now |= {"code": None, "restarts": seen // 20, "why": "was killed"}

    outcome = driven.run(on_change)
    assert [type(each) for each in driven.decisions] == [Restart, GiveUp]
    assert outcome.problem.startswith("sampler0.0 on m0 was killed")


def test_a_restart_shortly_before_the_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven(monkeypatch, 3)
    sampler, trainer = (driven.worker_group.actors[name] for name in ("sampler0.0", "trainer0"))

    def on_change(phase: str) -> None:
        if phase == "running":
            trainer.now = {**trainer.now, **KILLED, "code": 0, "how": "exited with code 0"}
        elif phase == "stopping":
            sampler.now |= {"restarts": 1, "why": "was killed"}

    assert driven.run(on_change).is_success
    assert [type(each) for each in driven.decisions] == [Restart]


def test_who_loses_all_shells_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven(monkeypatch, 3)

    def on_change(phase: str) -> None:
        if phase == "running":
            for actor in driven.worker_group.actors.values():
                actor.now["lost"] = True

    assert driven.run(on_change).fault == Lost("m0", "all gone")


def test_a_killed_trainer_ends_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven(monkeypatch, 3)

    def on_change(phase: str) -> None:
        if phase == "running":
            driven.worker_group.actors["trainer0"].now |= KILLED

    outcome = driven.run(on_change)
    assert outcome.fault == Ended("trainer0", -9, "was ended by SIGKILL")
    assert driven.decisions == []


def test_a_failure_that_a_lost_machine_explains_is_its_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driven = Driven(monkeypatch, 3)

    def on_change(phase: str) -> None:
        trainer = driven.worker_group.actors["trainer0"]
        if phase == "running":
            trainer.now |= {**KILLED, "code": 1, "how": "exited with code 1"}
        if phase == "stopping":
            # What Ray says of the machine comes later.
            for actor in driven.worker_group.actors.values():
                actor.now["lost"] = True

    outcome = driven.run(on_change)
    assert outcome.fault == Lost("m0", "all gone")
    # The user reads the cause, not its first consequence.
    assert outcome.problem == "m0 is lost: all gone"
    assert outcome.remedy == "check the machine, then run again"
