"""Groups of CoGNN, worked out by hand."""

from __future__ import annotations

from headrace.policies.trials import TRIAL_ORDERS, Queue, Room, TrialLoad

MEMORY = (5.0, 1.0, 4.0, 2.0, 3.0)


def groups(name: str, num_workers: int, memory_bytes: float) -> list[list[float]]:
    """Memory of the trials of each group."""
    waiting = [TrialLoad(i, each) for i, each in enumerate(MEMORY)]
    found, num_begun = [], 0
    while waiting:
        group = TRIAL_ORDERS[name](
            Queue(waiting, num_begun=num_begun), Room(num_workers, memory_bytes)
        )
        found.append([trial.memory_bytes for trial in group])
        num_begun += len(group)
        waiting = [trial for trial in waiting if trial not in group]
    return found


def test_base_takes_them_in_order() -> None:
    assert groups("base", 2, 100.0) == [[5, 1], [4, 2], [3]]
    assert groups("base", 3, 6.0) == [[5, 1], [4, 2], [3]]


def test_lmcf_takes_the_smallest_first() -> None:
    assert groups("lmcf", 2, 100.0) == [[1, 2], [3, 4], [5]]


def test_bmc_takes_the_smallest_and_the_largest_in_turns() -> None:
    assert groups("bmc", 2, 100.0) == [[1, 5], [2, 4], [3]]
    # The turn goes on over groups: after 1, 5 and 2 it is that of the largest.
    assert groups("bmc", 3, 100.0) == [[1, 5, 2], [4, 3]]


def test_a_group_waits_for_the_one_before() -> None:
    running = [TrialLoad(9, 1.0)]
    waiting = [TrialLoad(0, 1.0)]
    for name in ("base", "lmcf", "bmc"):
        assert TRIAL_ORDERS[name](Queue(waiting, running, 1), Room(4)) == []
    assert TRIAL_ORDERS["shortest"](Queue(waiting, running, 1), Room(4)) == waiting
