"""Every order of trials keeps the contract of `TrialOrder`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.policies.trials import TRIAL_ORDERS, Queue, Room, TrialLoad
from headrace.simulator.trial_queue import simulate_queue

LOADS = st.lists(
    st.builds(
        TrialLoad,
        number=st.just(0),
        memory_bytes=st.floats(0.0, 10.0),
        time_s=st.floats(0.1, 10.0),
        nic_share=st.floats(0.0, 1.0),
    ),
    max_size=12,
).map(
    lambda loads: [TrialLoad(i, t.memory_bytes, t.time_s, t.nic_share) for i, t in enumerate(loads)]
)


@pytest.mark.parametrize("name", TRIAL_ORDERS)
@given(trials=LOADS, num=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_all_trials_run_once_and_fit(name: str, trials: list[TrialLoad], num: int) -> None:
    room = Room(num, memory_bytes=12.0)
    order = TRIAL_ORDERS[name]
    seen: list[TrialLoad] = []

    def checked(queue: Queue, room: Room) -> list[TrialLoad]:
        chosen = order(queue, room)
        assert chosen == order(queue, room)
        together = [*queue.running, *chosen]
        assert room.has(together)
        assert chosen or queue.running or not queue.waiting
        assert not {t.number for t in chosen} & {t.number for t in seen}
        seen.extend(chosen)
        return chosen

    outcome = simulate_queue(trials, checked, room)
    assert sorted(outcome.end_s) == [trial.number for trial in trials]
    assert all(outcome.end_s[n] >= outcome.begin_s[n] for n in outcome.end_s)


@pytest.mark.parametrize("name", TRIAL_ORDERS)
def test_a_trial_that_uses_all_of_the_network_runs_alone(name: str) -> None:
    trials = [TrialLoad(i, nic_share=1.0, time_s=1.0) for i in range(3)]
    outcome = simulate_queue(trials, TRIAL_ORDERS[name], Room(3))
    assert sorted(outcome.begin_s.values()) == [0.0, 1.0, 2.0]
