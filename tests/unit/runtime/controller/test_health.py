"""A run that does not move says so, and machines that do not reach each other are found."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.job import Role
from headrace.policies.lifecycle.events import Lost, Task
from headrace.runtime.cluster.local_actors import LocalActors
from headrace.runtime.controller.health import PartitionProbe, StallDetector
from headrace.runtime.controller.worker_group import PendingActorCalls
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.protocol.trainer_messages import (
    BatchProgress,
    BatchRequested,
    Message,
    Waiting,
)

TASKS = (Task("sampler0.0", Role.SAMPLER, "m1"), Task("trainer0", Role.TRAINER, "m0"))


def state_of(*messages: Message, trace_bytes: int = 0) -> ActorState:
    return ActorState(messages=messages, trace_bytes=trace_bytes)


def test_steps_and_records_are_movement() -> None:
    watch = StallDetector(TASKS, 0.0)
    assert watch.update("trainer0", state_of(BatchProgress(True, 1, 9, 4, 1.0, 0.5, {})), 8.0)
    assert watch.poll(17.0) == ("", False)
    assert not watch.update("trainer0", state_of(trace_bytes=10), 17.0)
    assert watch.poll(26.0) == ("", False)
    # The same again is none.
    watch.update("trainer0", state_of(trace_bytes=10), 26.0)
    line, probes = watch.poll(28.0)
    assert line == "no iteration for 11 s: no task reports a reason"
    assert not probes
    assert watch.poll(62.0)[1]
    watch.update("trainer0", state_of(trace_bytes=20), 63.0)
    assert watch.poll(63.0) == ("the run resumed after 46 s", False)
    assert watch.poll(64.0) == ("", False)


def test_who_waits_is_named() -> None:
    watch = StallDetector(TASKS, 0.0)
    watch.update("trainer0", state_of(Waiting("sampler0.0 on m1", True)), 5)
    watch.update("sampler0.0", ActorState(waits_for="store2 on m2"), 5)
    line, _ = watch.poll(12.0)
    assert line == (
        "no first iteration for 12 s: trainer0 on m0 waits for sampler0.0 on m1; "
        "sampler0.0 on m1 waits for store2 on m2"
    )
    watch.update("trainer0", state_of(Waiting("sampler0.0 on m1", False)), 9)
    watch.update("sampler0.0", ActorState(), 13)
    assert "trainer0 on m0 waits for its script, which imports" in watch.poll(30.0)[0]
    watch.update("trainer0", state_of(BatchRequested()), 31)
    assert "trainer0 on m0 waits for its first batch" in watch.poll(60.0)[0]


class Shell:
    """Answers at once what its machine does not reach."""

    def __init__(self, unreachable: dict[str, str] | None) -> None:
        self._unreachable = unreachable
        self.asked: dict[str, Any] = {}
        self.reach = self

    def remote(self, places: dict[str, Any]) -> Shell:
        self.asked = places
        return self

    @property
    def answer(self) -> dict[str, str]:
        if self._unreachable is None:
            raise ConnectionError
        return self._unreachable


class AtOnce(PendingActorCalls):
    def add(self, ref: Any, then: Any, failed: Any) -> None:
        try:
            answer = ref.answer
        except ConnectionError as error:
            failed(error)
        else:
            then(answer)


@pytest.mark.parametrize(
    ("found", "accused", "line"),
    [
        ([{}, {}, {}], None, "all machines are connected: the network is not the cause"),
        ([{}, {"m2": "no"}, {"m1": "no"}], "m1", ""),
        ([{"m2": "no"}, {}, None], "m2", ""),
    ],
)
def test_whoever_is_cut_off_is_accused(
    found: list[dict[str, str] | None], accused: str | None, line: str
) -> None:
    said: list[str] = []
    lost: list[Lost] = []
    places = {f"m{m}": (f"10.0.0.{m}", 100 if m else None) for m in range(3)}
    actors = {f"m{m}": Shell(each) for m, each in enumerate(found)}
    PartitionProbe(places, "m0", said.append, lost.append).begin(AtOnce(LocalActors("m0")), actors)
    assert actors["m1"].asked == {"m0": ("10.0.0.0", 1), "m2": ("10.0.0.2", 100)}
    assert [each.name for each in lost] == ([accused] if accused else [])
    assert said == ([line] if line else [])
