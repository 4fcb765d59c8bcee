"""Faults are told in the order they happened in, and the policy hears of them once."""

from __future__ import annotations

import pytest

from headrace.core.errors import LOST_PEER_CODE
from headrace.core.job import Role
from headrace.policies.lifecycle.events import Ended, Lost, Outcome, Regroup, Task
from headrace.policies.recovery.deciding import Recovery
from headrace.policies.recovery.events import (
    Decision,
    GiveUp,
    Limits,
    MachineLost,
    MachinesJoined,
    Restart,
    Resume,
    Saved,
    TaskEnded,
    TaskLost,
)
from headrace.runtime.controller.failure_handling import (
    HOLD_S,
    MAX_HOLD_S,
    FailureHandler,
    FaultDebouncer,
    event_of,
    shell_code,
)

STORE, TRAINER = Task("store0", Role.STORE, "m0"), Task("trainer0", Role.TRAINER, "m1")
TASKS = (STORE, TRAINER)
KILLED = Ended("trainer0", -9, "was ended by SIGKILL")


def mender(**changes: object) -> tuple[FailureHandler, list[Decision]]:
    told: list[Decision] = []
    state = Recovery(frozenset({"m0", "m1"}), **changes)  # type: ignore[arg-type]
    return FailureHandler(state, lambda state, decision: told.append(decision)), told


def test_the_first_fault_explains_the_rest() -> None:
    held = FaultDebouncer()
    assert held.hold(Ended("trainer0", 1, "ended"), 9.9, 10.0)
    assert not held.hold(Lost("store0", "gone"), 9.5, 10.2)
    assert not held.hold(Ended("trainer0", 1, "ended"), 9.0, 10.3)
    assert held.release(10.0 + HOLD_S / 2) == []
    assert held.release(10.0 + HOLD_S) == [Lost("store0", "gone"), Ended("trainer0", 1, "ended")]
    assert held.release(99.0) == []
    assert held.hold(Ended("trainer0", 1, "ended"), 99.0, 99.0)


def test_whoever_was_killed_explains_the_rest() -> None:
    held = FaultDebouncer()
    failed = Ended("store0", 1, "ended")
    held.hold(failed, 9.0, 10.0)
    held.hold(KILLED, 9.5, 10.2)
    # Somebody has not answered yet, and may have been killed too.
    assert held.release(10.0 + HOLD_S, have_all_replied=False) == []
    assert held.release(10.0 + MAX_HOLD_S, have_all_replied=False) == [KILLED, failed]


def test_who_lost_a_peer_explains_nothing() -> None:
    held = FaultDebouncer()
    lost = Ended("trainer1", LOST_PEER_CODE, "exited", "lost another trainer")
    failed = Ended("trainer0", 1, "exited", "ValueError")
    # The clocks of slow replies do not tell which was first.
    held.hold(lost, 9.0, 10.0)
    held.hold(failed, 9.5, 10.2)
    assert held.release(10.0 + HOLD_S) == [failed, lost]


def test_the_fastest_reply_knows_best_when_a_task_has_ended() -> None:
    held = FaultDebouncer()
    first, second = Ended("trainer0", 1, "exited"), Ended("trainer1", 1, "exited")
    held.hold(second, 9.0, 10.0)
    held.hold(first, 10.0, 11.5)
    held.hold(first, 8.8, 12.0)
    assert held.release(13.0) == [first, second]


def test_replies_from_before_a_fault_do_not_tell_of_its_cause() -> None:
    held = FaultDebouncer()
    failed = Ended("trainer1", 1, "ended")
    held.hold(failed, 9.0, 10.0, ["trainer0", "trainer1"])
    held.unasked.discard("trainer1")
    assert held.release(10.0 + HOLD_S) == []
    held.unasked.discard("trainer0")
    assert held.release(10.0 + HOLD_S) == [failed]


def test_faults_are_events_of_the_policy() -> None:
    said = Ended("trainer0", 1, "exited with code 1", "ValueError")
    assert event_of(said, TASKS) == TaskEnded(
        TRAINER, 1, "exited with code 1; last output: ValueError"
    )
    assert event_of(Lost("store0", "gone"), TASKS) == TaskLost(STORE, "gone")
    assert event_of(Lost("m1", "gone"), TASKS) == MachineLost("m1", "gone")


@pytest.mark.parametrize(("code", "shell"), [(3, 3), (-9, 137), (LOST_PEER_CODE, 0)])
def test_a_command_ends_with_the_code_of_its_script(code: int, shell: int) -> None:
    assert shell_code(Ended("trainer0", code, "ended")) == shell


def test_a_fault_is_decided_once() -> None:
    mending, told = mender()
    decision = mending.after(Outcome(problem="p", fault=KILLED), TASKS)
    assert isinstance(decision, Resume)
    assert told == [decision]
    # A restart is over once it is decided.
    assert isinstance(mending.handle(TaskEnded(STORE, -9, "was killed", True)), Restart)
    assert mending.pending is None


def test_what_was_decided_before_the_end_holds() -> None:
    mending, told = mender(elastic=True)
    mending.handle(MachinesJoined(frozenset({"m2"})))
    mending.handle(Saved(10))
    decision = mending.after(Outcome(problem="p", fault=Regroup("m2 has joined")), TASKS)
    assert told == [decision]
    assert isinstance(decision, Resume)
    assert decision.machines == {"m0", "m1", "m2"}
    assert mending.after(Outcome(problem="other", fault=None), TASKS) is None


def test_without_restarts_it_is_given_up() -> None:
    mending, _ = mender(limits=Limits.of(0))
    assert isinstance(mending.after(Outcome(problem="p", fault=KILLED), TASKS), GiveUp)
