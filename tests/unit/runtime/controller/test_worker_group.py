"""Task actors are registered before they are polled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.policies.lifecycle.events import Event, Failed, Lost, Placed
from headrace.prefork.identity import own_version
from headrace.runtime.cluster.actor_system import CallFailure, RayActors
from headrace.runtime.cluster.head import CALL_S, HeadLostError
from headrace.runtime.cluster.local_actors import LocalActors
from headrace.runtime.controller.worker_group import PendingActorCalls, WorkerGroup
from tests.unit.runtime.listened import small_plan


def test_an_actor_of_another_version_is_not_registered() -> None:
    _, slots = small_plan()
    group = WorkerGroup(LocalActors("m0"), slots, "run-1")
    events: list[Event] = []
    group._emit = events.append
    for slot in slots:
        version = "0.0" if slot.task.name == "store1" else own_version()
        registration: dict[str, Any] = {"version": version, "node_id": slot.node.node_id}
        group._register(slot.task.name, registration)
    (failed,) = events
    assert isinstance(failed, Failed)
    assert failed.problem == f"m1 has headrace 0.0, the driver {own_version()}"
    assert not group.is_placed
    group._register("store1", {"version": own_version(), "node_id": "id1"})
    assert isinstance(events[-1], Placed)


def test_an_actor_that_has_not_registered_is_closed_if_it_answers_soon() -> None:
    slow = Slow()
    group = slow_group(slow)
    for name in group.names[1:]:
        del group._registrations[name]
    group.close(10.0)
    assert len(slow.calls) == len(group.names)
    assert slow.waits_s == [4.0]


@pytest.mark.parametrize("is_alive", [True, False])
def test_an_actor_that_does_not_reply_is_lost(
    is_alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    exceptions = pytest.importorskip("ray.exceptions")
    _, slots = small_plan()
    group = WorkerGroup(RayActors(), slots, "run-1")
    alive = {slot.node.node_id for slot in slots if is_alive or slot.task.machine != "m1"}
    monkeypatch.setattr(group, "_alive", lambda: alive)
    error = exceptions.ActorUnavailableError("unreachable", b"a" * 16)
    event = group.explain("store1", error)
    assert event == (
        Lost("store1", "its Ray actor does not reply")
        if is_alive
        else Lost("m1", "its Ray node is gone")
    )


def test_without_the_head_a_lost_actor_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    exceptions = pytest.importorskip("ray.exceptions")
    _, slots = small_plan()

    def lost() -> None:
        raise HeadLostError

    group = WorkerGroup(RayActors(), slots, "run-1")
    monkeypatch.setattr(group, "_alive", lost)
    event = group.explain("store1", exceptions.ActorUnavailableError("unreachable", b"a" * 16))
    assert isinstance(event, Failed)
    assert event.problem == (
        "store1 on m1 is lost, and the head of the Ray cluster does not answer"
    )
    assert "headrace run --resume" in event.remedy


def test_the_user_is_told_of_a_head_that_is_waited_for() -> None:
    _, slots = small_plan()
    timeouts_s: list[float] = []

    def ask(timeout_s: float = CALL_S) -> list[dict[str, Any]]:
        timeouts_s.append(timeout_s)
        if len(timeouts_s) == 1:
            raise HeadLostError
        assert lines == ["waiting for the head of the Ray cluster, which knows what was lost"]
        return [{"NodeID": slot.node.node_id, "Alive": True} for slot in slots]

    lines: list[str] = []
    system: Any = SimpleNamespace(
        nodes=ask, head_silent_s=0.0, why=lambda error: CallFailure.DIED, reserve=lambda *_: None
    )
    group = WorkerGroup(system, slots, "run-1")
    group.place(PendingActorCalls(system), lambda event: None, lines.append)
    assert isinstance(group.explain("store1", ValueError()), Lost)
    assert timeouts_s == [2.0, CALL_S]


class Slow:
    """Actors, each of whose calls takes some time by a clock of its own."""

    errors = (TimeoutError,)

    def __init__(self, call_s: float = 0.0) -> None:
        self.now_s, self.call_s = 0.0, call_s
        self.calls: list[str] = []
        self.waits_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def __getattr__(self, name: str) -> Any:
        return self

    def remote(self) -> str:
        self.calls.append("call")
        return f"ref{len(self.calls)}"

    def get(self, ref: str, timeout_s: float) -> float:
        self.now_s += min(self.call_s, timeout_s)
        if self.call_s > timeout_s:
            raise TimeoutError
        return self.now_s

    def wait(self, refs: list[str], timeout_s: float, num: int = 1) -> list[str]:
        self.waits_s.append(timeout_s)
        return refs[:1]

    def kill(self, actor: Any) -> None: ...

    def why(self, error: Exception) -> CallFailure:
        return CallFailure.RAISED


def slow_group(slow: Slow) -> WorkerGroup:
    _, slots = small_plan()
    system: Any = slow
    group = WorkerGroup(system, slots, "run-1")
    group._actors = {slot.task.name: slow for slot in slots}
    group._registrations = {slot.task.name: {} for slot in slots}
    return group


@pytest.mark.parametrize(
    ("call_s", "machines"), [(0.001, {"m0", "m1"}), (1.9, set()), (9.0, set())]
)
def test_clocks_are_compared_for_a_few_seconds(
    call_s: float, machines: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(call_s)
    monkeypatch.setattr("headrace.runtime.controller.worker_group.time", slow)
    offsets = slow_group(slow).clock_offsets()
    assert set(offsets) == machines
    assert slow.now_s <= 5.0


def test_an_actor_that_raised_an_error_is_closed() -> None:
    slow = Slow()
    group = slow_group(slow)
    assert isinstance(group.explain("trainer0", ValueError("no")), Failed)
    lines: list[str] = []
    group.close(10.0, lines.append)
    assert len(slow.calls) == len(group.names)
    assert slow.waits_s == [4.0, 6.0]
    assert lines == [
        "waiting for the end of store1 on m1, sampler0.0 on m0, sampler1.0 on m1 and 2 more"
    ]


def test_a_file_that_comes_slowly_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    lines: list[str] = []

    def wait(refs: list[str], timeout_s: float) -> list[str]:
        slow.now_s += timeout_s
        return []

    def get(ref: str, timeout_s: float) -> bytes:
        raise TimeoutError

    monkeypatch.setattr(slow, "wait", wait)
    monkeypatch.setattr(slow, "get", get)
    monkeypatch.setattr(slow, "remote", lambda name, offset: name)
    monkeypatch.setattr("headrace.runtime.controller.worker_group.time", slow)
    with pytest.raises(TimeoutError):
        next(slow_group(slow).pieces("trainer0", lines.append, "model.pt"))
    assert slow.now_s == 20.0
    # After 3 s, because whatever was waited for before may have been quiet, and every 8 s.
    assert lines == ["waiting for model.pt of trainer0 on m0: 0 bytes so far"] * 3
