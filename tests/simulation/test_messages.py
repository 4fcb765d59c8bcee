"""What a run says at its end follows from the faults that were injected, and from no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.messages import Injected, unexpected, unexplained

KILLED = "trainer0 on m0 was ended by SIGKILL, possibly out of memory"
SPENT = f"{KILLED} (there were 1 resumes since the last checkpoint)"
MISSING = "the plan needs m1, which the Ray cluster does not have; its nodes: m0 at 10.0.0.1"
KILL = Injected("kill task", frozenset({"trainer0"}))
OTHER = Injected("kill task", frozenset({"trainer1"}))
AGAIN = Injected("kill repeatedly", frozenset({"trainer0"}))
DIED = "store1 on m1 is lost: its Ray actor has died, possibly out of memory"
FAILED = "trainer0 on m0 exited with code 5; last output: error:"
SILENT = f"{FAILED} store1 on m1 did not answer gather"
CLOSED = f"{FAILED} store1 on m1 did not accept the connection"
NEAR = f"{FAILED} store0 on m0 did not answer gather"
STOP = Injected("stop task", frozenset({"store1"}))
CUT = Injected("cut", frozenset({"m1", "store1", "trainer1"}))
CUT_PAIR = Injected("cut", frozenset({"m0", "m1", "store0", "store1", "trainer0", "trainer1"}))
CUT_OTHER = Injected("cut", frozenset({"m1", "m2", "store1", "store2"}))
CUT_NEAR = Injected("cut", frozenset({"m0", "store0", "trainer0"}))
CUT_LONG = Injected("cut", frozenset({"m0", "m1", "trainer0"}), 86.0)
SAMPLER = (
    "trainer0 on m0 exited with code 7; last output: error: cannot start a sampler: unreachable"
)
SPENT_CUT = f"{SAMPLER} (there were 3 resumes since the last checkpoint)"
MACHINE = Injected("kill machine", frozenset({"m1", "trainer1"}))


@pytest.mark.parametrize(
    ("problem", "faults", "left"),
    [
        (KILLED, [KILL], ""),
        (KILLED, [OTHER, MACHINE], KILLED),
        (KILLED, [], KILLED),
        (SPENT, [KILL, OTHER], ""),
        (SPENT, [AGAIN, AGAIN], ""),
        (SPENT, [KILL], "there were 1 resumes since the last checkpoint"),
        (f"{KILLED}, and the run cannot be resumed: {MISSING}", [KILL, MACHINE], ""),
        (f"{KILLED}, and the run cannot be resumed: {MISSING}", [KILL], MISSING),
        (DIED, [Injected("kill machine", frozenset({"m1", "store1"}))], ""),
        (DIED, [Injected("kill machine", frozenset({"m0", "store0"}))], DIED),
        (SILENT, [STOP], ""),
        (SILENT, [CUT], ""),
        (SILENT, [CUT_PAIR], ""),
        (SILENT, [CUT_OTHER], SILENT),
        (SILENT, [Injected("stop task", frozenset({"store0"}))], SILENT),
        (CLOSED, [CUT], ""),
        (CLOSED, [STOP], CLOSED),
        (NEAR, [CUT_NEAR], NEAR),
        (SPENT_CUT, [CUT_LONG], ""),
        (
            SPENT_CUT,
            [replace(CUT_LONG, length_s=8.0)],
            "there were 3 resumes since the last checkpoint",
        ),
        ("trainer0 on m0 is unhappy", [KILL], "trainer0 on m0 is unhappy"),
    ],
)
def test_a_message_needs_a_fault_that_explains_it(
    problem: str, faults: list[Injected], left: str
) -> None:
    assert unexplained(problem, faults) == left


def test_a_run_that_recovers_from_what_no_fault_does_is_wrong() -> None:
    lines = ["running", "store0 on m0 refused to push: rank 2 pushed more rows: starting over"]
    assert unexpected(lines, {"reset", "delay"}) == lines[1]
    assert unexpected(lines, {"reset", "full disk"}) == ""
