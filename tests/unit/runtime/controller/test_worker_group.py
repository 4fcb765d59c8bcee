"""Task actors are registered before they are polled."""

from __future__ import annotations

from typing import Any

from headrace.policies.lifecycle.events import Event, Failed, Placed
from headrace.prefork.identity import own_version
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
