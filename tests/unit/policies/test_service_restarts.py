"""Tasks of a service are restarted unless they fail again and again."""

from __future__ import annotations

from headrace.policies.recovery.service_restarts import SETTLED_S, ServiceRestarts


def test_restarts_in_a_row_are_limited() -> None:
    restarts: ServiceRestarts | None = ServiceRestarts(limit=2)
    for now_s in (0.0, 1.0):
        assert restarts is not None
        restarts = restarts.after("store0", now_s)
    assert restarts is not None
    assert restarts.counts == {"store0": 2}
    assert restarts.after("store0", 2.0) is None
    assert restarts.after("store1", 2.0) is not None


def test_a_task_that_has_worked_may_be_restarted_any_number_of_times() -> None:
    restarts: ServiceRestarts | None = ServiceRestarts(limit=1)
    for number in range(20):
        assert restarts is not None
        restarts = restarts.after("store0", number * SETTLED_S)
    assert restarts is not None
    assert restarts.counts == {"store0": 1}
