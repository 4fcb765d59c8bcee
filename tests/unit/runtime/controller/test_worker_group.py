"""Task actors are registered before they are polled."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.policies.lifecycle.events import Event, Failed, Lost, Placed
from headrace.prefork.identity import own_version
from headrace.runtime.cluster.actor_system import RayActors
from headrace.runtime.cluster.head import HeadLostError
from headrace.runtime.cluster.local_actors import LocalActors
from headrace.runtime.controller.worker_group import WorkerGroup
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
