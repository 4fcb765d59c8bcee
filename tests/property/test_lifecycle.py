"""Whatever happens to a run, it ends, in time, and stops what it started."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.lifecycle.events import (
    Command,
    Ended,
    Event,
    Failed,
    Finish,
    Heard,
    Interrupted,
    Lost,
    Phase,
    Placed,
    Ready,
    Regroup,
    Shipped,
    Stage,
    Start,
    Stop,
    Tick,
    Verified,
    Waits,
)
from headrace.policies.lifecycle.steps import begin, step
from tests.support.lifecycle_invariants import validate
from tests.support.policy_tasks import TASKS, start_of

NAMES = st.sampled_from([*(task.name for task in TASKS), "stranger"])
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.just(Placed()),
    st.just(Shipped()),
    st.just(Interrupted()),
    st.just(Regroup("somebody has joined")),
    st.just(Tick()),
    st.builds(Waits, NAMES, st.sampled_from(["a", "b"])),
    st.builds(Ready, NAMES),
    st.builds(Verified, NAMES),
    st.builds(Heard, st.frozensets(NAMES)),
    st.builds(Ended, NAMES, st.sampled_from([0, 1, -9]), st.just("ended")),
    st.builds(Lost, NAMES | st.sampled_from(["m0", "m1"]), st.just("it is gone")),
    st.builds(Failed, st.just("problem"), st.just("remedy")),
)
# Most draws would end in the first phase; a good start leads further.
START = start_of(TASKS)
STARTS = st.integers(0, len(START)).map(lambda num: list(START[:num]))


@given(STARTS, st.lists(st.tuples(EVENTS, st.floats(0, 30)), max_size=30))
def test_every_run_ends_in_time_and_stops_what_it_started(
    start: list[Event], events: list[tuple[Event, float]]
) -> None:
    now_s = 0.0
    state, commands = begin(TASKS, now_s)
    done: list[Command] = list(commands)
    for event, passed_s in [*((event, 0.0) for event in start), *events]:
        now_s += passed_s
        before = state
        state, commands = step(state, event, now_s)
        validate(state)
        done += commands
        if before.phase is Phase.ENDED:
            assert (state, commands) == (before, [])
    # From here on nothing happens but that time passes: every deadline brings the run further.
    for _ in range(4 + len(TASKS)):
        if state.deadline_s is None:
            break
        now_s = max(now_s, state.deadline_s)
        before = state
        state, commands = step(state, Tick(), now_s)
        validate(state)
        assert state != before
        done += commands
    assert state.phase is Phase.ENDED
    assert sum(isinstance(command, Finish) for command in done) == 1
    assert isinstance(done[-1], Finish)
    started = {command.task for command in done if isinstance(command, Start)}
    stopped = {command.task for command in done if isinstance(command, Stop)}
    # Of the others nothing was left to stop.
    gone = {name for name, stage in state.stages.items() if stage in (Stage.ENDED, Stage.LOST)}
    assert started <= stopped | gone
    assert stopped <= started
