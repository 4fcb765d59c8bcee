"""What is done about a fault, one event after another."""

from __future__ import annotations

import pytest

from headrace.core.errors import LOST_PEER_CODE, RunError
from headrace.core.job import Role
from headrace.graph.sampler_worker.channels.errors import PrefetchError
from headrace.policies.lifecycle.events import Task
from headrace.policies.recovery.deciding import Recovery, decide
from headrace.policies.recovery.events import (
    Begun,
    Decision,
    Drifted,
    Event,
    GiveUp,
    Held,
    Limits,
    MachineLost,
    MachinesJoined,
    Released,
    Restart,
    Resume,
    Saved,
    Settled,
    Stepped,
    TaskEnded,
    TaskLost,
)
from headrace.rpc.errors import StoreError

MACHINES = frozenset({"m0", "m1", "m2"})
STORE = Task("store1", Role.STORE, "m1")
TRAINER = Task("trainer0", Role.TRAINER, "m0")
KILLED_STORE = TaskEnded(STORE, -9, "was ended by SIGKILL", can_restart=True)
KILLED_TRAINER = TaskEnded(TRAINER, -9, "was ended by SIGKILL")
RAISED = TaskEnded(TRAINER, 1, "exited with code 1")


def after(*events: Event, state: Recovery | None = None) -> tuple[Recovery, list[Decision]]:
    """Take events one after another; all decisions."""
    state = state or Recovery(MACHINES)
    decisions = []
    for event in events:
        state, decision = decide(state, event)
        if decision is not None:
            decisions.append(decision)
    return state, decisions


def test_a_store_is_started_again_where_it_is() -> None:
    state, decisions = after(KILLED_STORE)
    assert decisions == [Restart(STORE, "store1 on m1 was ended by SIGKILL", 1, 3)]
    assert (state.attempt, state.num_restarts) == (1, 1)


def test_a_store_that_ends_while_others_start_is_cause_to_begin_anew() -> None:
    _, decisions = after(TaskEnded(STORE, -9, "was ended by SIGKILL"))
    assert [each.why for each in decisions] == ["store1 on m1 was ended by SIGKILL"]
    assert isinstance(decisions[0], Resume)


@pytest.mark.parametrize("role", [Role.TRAINER, Role.SERVER])
@pytest.mark.parametrize("code", [-9, -15, 7, 130])
def test_who_was_ended_by_others_leads_to_a_resume(role: Role, code: int) -> None:
    task = Task("x0", role, "m0")
    state, decisions = after(TaskEnded(task, code, "ended", can_restart=True))
    assert decisions == [Resume("x0 on m0 ended", 2, machines=MACHINES)]
    assert state.attempt == 2
    assert state.machines == MACHINES


def test_a_lost_machine_is_not_used_again() -> None:
    state, decisions = after(MachineLost("m1", "its Ray node is gone"))
    left = MACHINES - {"m1"}
    why = "m1 is lost: its Ray node is gone"
    assert decisions == [Resume(why, 2, None, frozenset({"m1"}), machines=left)]
    assert state.machines == left
    _, decisions = after(*(MachineLost(name, "gone") for name in ("m0", "m2")), state=state)
    assert decisions[-1] == GiveUp("m2 is lost: gone", "no machine is left")


def test_a_lost_shell_costs_no_machine() -> None:
    state, decisions = after(TaskLost(STORE, "its Ray actor has died"))
    why = "store1 on m1 is lost: its Ray actor has died"
    assert decisions == [Resume(why, 2, machines=MACHINES)]
    assert state.machines == MACHINES


def test_restarts_end_unless_there_are_checkpoints() -> None:
    state, decisions = after(*[KILLED_STORE] * 4)
    assert [type(each) for each in decisions] == [Restart] * 3 + [GiveUp]
    assert decisions[-1] == GiveUp(
        "store1 on m1 was ended by SIGKILL",
        "there were 3 restarts of store1 since the last checkpoint",
    )
    state, decisions = after(Saved(10), KILLED_STORE, state=state)
    assert decisions == [Restart(STORE, "store1 on m1 was ended by SIGKILL", 1, 3)]
    assert state.num_restarts == 4


def test_resumes_end_unless_there_are_checkpoints() -> None:
    _, decisions = after(*[KILLED_TRAINER] * 6)
    assert [type(each) for each in decisions] == [Resume] * 5 + [GiveUp]
    events = [event for n in range(9) for event in (KILLED_TRAINER, Saved(n))]
    state, decisions = after(*events)
    assert {type(each) for each in decisions} == {Resume}
    assert (state.attempt, state.resumes) == (10, 0)


def test_a_checkpoint_counts_once() -> None:
    state, _ = after(Saved(10), KILLED_TRAINER, Saved(10), Saved(5))
    assert (state.resumes, state.saved) == (1, 10)


def test_a_script_that_fails_at_once_is_not_run_again() -> None:
    _, decisions = after(RAISED)
    assert decisions == [GiveUp("trainer0 on m0 exited with code 1", "it would fail again")]


@pytest.mark.parametrize("event", [KILLED_TRAINER, RAISED])
def test_a_local_script_is_run_again_from_a_checkpoint_only(event: Event) -> None:
    state = Recovery(frozenset({"m0"}), needs_checkpoint=True)
    _, decisions = after(Begun(), Stepped(), event, state=state)
    assert decisions == [GiveUp(decisions[0].why, "there is no checkpoint to resume from")]
    _, decisions = after(Begun(), Saved(3), event, state=state)
    assert isinstance(decisions[-1], Resume)


def test_a_local_script_that_has_not_begun_is_started_again() -> None:
    killed = TaskEnded(STORE, -9, "was ended by SIGKILL")
    state, decisions = after(killed, state=Recovery(frozenset({"m1"}), needs_checkpoint=True))
    assert [each.line for each in decisions] == [
        "store1 on m1 was ended by SIGKILL: starting over (attempt 2)"
    ]
    _, decisions = after(Begun(), killed, state=state)
    assert isinstance(decisions[-1], GiveUp)


def test_a_local_script_starts_over_if_its_checkpoint_is_on_hold() -> None:
    state = Recovery(frozenset({"m0"}), needs_checkpoint=True)
    _, decisions = after(Begun(), Stepped(), Held(3), KILLED_TRAINER, state=state)
    assert isinstance(decisions[-1], Resume)
    assert decisions[-1].line.endswith("starting over (attempt 2)")


def test_a_checkpoint_on_hold_counts_once_it_is_released() -> None:
    state, _ = after(Held(3), Released())
    assert state.saved == 3
    # The next attempt drops what is on hold, also if it was saved while tasks stopped.
    state, _ = after(KILLED_TRAINER, Held(3), Settled(MACHINES), Released())
    assert state.saved is None


def test_a_script_that_fails_later_is_run_again_once() -> None:
    state, decisions = after(Stepped(), RAISED, RAISED)
    assert [type(each) for each in decisions] == [Resume, GiveUp]
    _, decisions = after(Saved(10), RAISED, state=state)
    assert [type(each) for each in decisions] == [Resume]


@pytest.mark.parametrize(
    "code",
    [StoreError.exit_code, PrefetchError.exit_code, RunError.exit_code, LOST_PEER_CODE],
)
def test_whoever_lost_another_task_is_not_to_blame(code: int) -> None:
    _, decisions = after(TaskEnded(TRAINER, code, "lost somebody"))
    assert [type(each) for each in decisions] == [Resume]


def test_what_the_user_gave_is_not_tried_again() -> None:
    wrong = TaskEnded(TRAINER, 2, "exited with code 2")
    _, decisions = after(Stepped(), wrong)
    assert [type(each) for each in decisions] == [GiveUp]


@pytest.mark.parametrize("event", [KILLED_STORE, KILLED_TRAINER, RAISED, MachineLost("m1", "gone")])
def test_without_restarts_the_first_fault_is_the_last(event: Event) -> None:
    _, (decision,) = after(Stepped(), event, state=Recovery(MACHINES, Limits.of(0)))
    assert isinstance(decision, GiveUp)
    assert not decision.because


def test_a_machine_that_joins_is_used_from_the_next_checkpoint_on() -> None:
    joined = MachinesJoined(frozenset({"m1", "m3"}))
    state, decisions = after(joined, state=Recovery(MACHINES, Limits.of(0), elastic=True))
    assert not decisions
    state, decisions = after(Saved(100), state=state)
    assert state.machines == MACHINES | {"m3"}
    more = frozenset({"m3"})
    assert decisions == [Resume("m3 has joined", 2, 100, joined=more, machines=state.machines)]
    assert not state.joined
    assert state.resumes == 0


def test_a_machine_that_has_left_again_is_not_waited_for() -> None:
    joined, left = MachinesJoined(frozenset({"m3"})), MachinesJoined(frozenset())
    _, decisions = after(joined, left, Saved(1), state=Recovery(MACHINES, elastic=True))
    assert not decisions


def test_a_resume_for_another_reason_uses_who_has_joined() -> None:
    joined, lost = MachinesJoined(frozenset({"m3"})), MachineLost("m1", "gone")
    state, decisions = after(joined, lost, state=Recovery(MACHINES, elastic=True))
    (decision,) = decisions
    assert isinstance(decision, Resume)
    assert decision.without == {"m1"}
    assert decision.joined == {"m3"}
    assert state.machines == decision.machines == {"m0", "m2", "m3"}


def test_nobody_joins_unless_asked_for() -> None:
    state, decisions = after(MachinesJoined(frozenset({"m3"})), Saved(1))
    assert not decisions
    assert state.machines == MACHINES


def test_machines_that_went_at_the_same_time_are_done_without() -> None:
    state, decisions = after(MachineLost("m1", "gone"), Settled(frozenset({"m0", "m1", "m9"})))
    assert len(decisions) == 1
    assert state.machines == {"m0"}
    _, decisions = after(Settled(frozenset({"m9"})), state=state)
    assert [type(each) for each in decisions] == [GiveUp]


@pytest.mark.parametrize(
    ("events", "line"),
    [
        ([KILLED_STORE], "store1 on m1 was ended by SIGKILL: restarting it (1 of 3)"),
        ([KILLED_TRAINER], "trainer0 on m0 was ended by SIGKILL: starting over (attempt 2)"),
        (
            [Saved(400), MachineLost("m1", "gone")],
            "m1 is lost: gone: resuming from iteration 400 on m0, m2 (attempt 2)",
        ),
        ([RAISED], "trainer0 on m0 exited with code 1: giving up, because it would fail again"),
    ],
)
def test_decisions_are_lines_for_people(events: list[Event], line: str) -> None:
    _, decisions = after(*events)
    assert decisions[-1].line == line


def test_a_drifted_run_goes_on_from_a_checkpoint_only() -> None:
    drifted = Drifted("m1 in carries 4 Gbps, not 8 Gbps")
    assert after(drifted)[1] == []
    state, (decision,) = after(Saved(10), drifted)
    assert decision.line == f"{drifted.why}: resuming with another plan (attempt 2)"
    # It is no fault, so none is counted.
    assert (state.resumes, state.machines) == (0, MACHINES)
