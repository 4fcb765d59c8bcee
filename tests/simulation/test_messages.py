"""What a run says at its end follows from the faults that were injected, and from no others."""

from __future__ import annotations

import pytest

from tests.simulation.messages import Injected, unexplained

KILLED = "trainer0 on m0 was ended by SIGKILL, possibly out of memory"
SPENT = f"{KILLED} (there were 1 resumes since the last checkpoint)"
MISSING = "the plan needs m1, which the Ray cluster does not have; its nodes: m0 at 10.0.0.1"
KILL = Injected("kill task", frozenset({"trainer0"}))
OTHER = Injected("kill task", frozenset({"trainer1"}))
MACHINE = Injected("kill machine", frozenset({"m1", "trainer1"}))


@pytest.mark.parametrize(
    ("problem", "faults", "left"),
    [
        (KILLED, [KILL], ""),
        (KILLED, [OTHER, MACHINE], KILLED),
        (KILLED, [], KILLED),
        (SPENT, [KILL, OTHER], ""),
        (SPENT, [KILL], "there were 1 resumes since the last checkpoint"),
        (f"{KILLED}, and the run cannot be resumed: {MISSING}", [KILL, MACHINE], ""),
        (f"{KILLED}, and the run cannot be resumed: {MISSING}", [KILL], MISSING),
        ("trainer0 on m0 is unhappy", [KILL], "trainer0 on m0 is unhappy"),
    ],
)
def test_a_message_needs_a_fault_that_explains_it(
    problem: str, faults: list[Injected], left: str
) -> None:
    assert unexplained(problem, faults) == left
