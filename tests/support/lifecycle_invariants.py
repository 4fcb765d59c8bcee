"""Invariants of the state of a run."""

from __future__ import annotations

from itertools import combinations

from headrace.policies.lifecycle.events import Phase, Stage
from headrace.policies.lifecycle.state import LIVE, STARTS, Lifecycle


def validate(state: Lifecycle) -> None:
    """Check the invariants.

    Raises:
        AssertionError: An invariant does not hold.
    """
    assert set(state.stages) == {task.name for task in state.tasks}
    assert (state.deadline_s is None) == (state.phase is Phase.ENDED)
    assert (state.outcome is not None) == (state.phase in (Phase.STOPPING, Phase.ENDED))
    if state.phase is Phase.ENDED:
        assert not any(stage in LIVE for stage in state.stages.values())
    if state.outcome is None:
        for earlier, later in combinations(STARTS.values(), 2):
            has_begun = any(state.stages[task.name] for task in state.of_role(later))
            waits = any(state.stages[task.name] < Stage.READY for task in state.of_role(earlier))
            assert not (has_begun and waits), f"a {later} began before every {earlier} was ready"
        assert Stage.LOST not in state.stages.values()
