"""Whatever befalls a run, it is not mended for ever, and never on machines that are gone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.recovery.deciding import Recovery, decide
from headrace.policies.recovery.events import (
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
    Stepped,
    TaskEnded,
    TaskLost,
)
from tests.support import policy_tasks

MACHINES = ("m0", "m1", "m2")
TASKS = st.sampled_from(policy_tasks.TASKS)
FAULTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(TaskEnded, TASKS, st.sampled_from(policy_tasks.EXIT_CODES), st.just("ended")),
    st.builds(TaskEnded, TASKS, st.just(-9), st.just("ended"), st.just(True)),
    st.builds(TaskLost, TASKS, st.just("gone")),
    st.builds(MachineLost, st.sampled_from(MACHINES), st.just("gone")),
)
JOINS = st.builds(MachinesJoined, st.frozensets(st.sampled_from(MACHINES)))
OTHERS: st.SearchStrategy[Event] = st.one_of(
    JOINS,
    st.just(Stepped()),
    st.just(Released()),
    st.builds(Held, st.integers(0, 50)),
    st.builds(Saved, st.integers(0, 50)),
)
STATES = st.builds(
    Recovery, st.just(frozenset(MACHINES)), st.integers(0, 3).map(Limits.of), st.booleans()
)


@given(STATES, st.lists(FAULTS | OTHERS, max_size=30))
def test_a_run_is_mended_on_machines_that_are_there(state: Recovery, events: list[Event]) -> None:
    there = set(MACHINES)
    for event in events:
        before = state
        if isinstance(event, MachineLost):
            there.discard(event.machine)
        if isinstance(event, MachinesJoined):
            # Who is said to be there is; who has joined and left again is not.
            there = (there & before.machines) | event.machines
        state, decision = decide(before, event)
        assert decision is None or decision.line
        match decision:
            case Resume():
                assert state.attempt == before.attempt + 1
                assert state.machines
                assert state.machines <= there
                assert state.machines == decision.machines
                assert state.machines == (before.machines | decision.joined) - decision.without
            case Restart():
                assert 1 <= decision.number <= state.limits.restarts
                assert state.machines == before.machines
            case GiveUp():
                return
            case None:
                assert state.attempt == before.attempt
        # What fails is mended or ends the run.
        is_fault = isinstance(event, TaskEnded | TaskLost | MachineLost)
        assert not is_fault or decision is not None


@given(STATES, st.lists(FAULTS | JOINS, min_size=40, max_size=60))
def test_without_checkpoints_every_run_is_given_up(state: Recovery, events: list[Event]) -> None:
    num_faults = 0
    for event in events:
        state, decision = decide(state, event)
        num_faults += not isinstance(event, MachinesJoined)
        if isinstance(decision, GiveUp):
            return
        limits = state.limits
        # Three tasks can be restarted.
        assert num_faults <= 3 * limits.restarts + limits.resumes
