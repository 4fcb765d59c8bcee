from __future__ import annotations

import pytest

from headrace.policies.recovery.stalls import Stall, accuse, check, describe


def test_somebody_who_watches_hears_something_every_15_s() -> None:
    stall, told, probed = Stall(100.0), [], []
    for tenth in range(1000, 1900):
        now_s = tenth / 10
        stall, says, probes = check(stall, now_s)
        told += [now_s] * says
        probed += [now_s] * probes
    assert told[0] == 110.0
    assert max(b - a for a, b in zip([100.0, *told], [*told, 190.0], strict=True)) <= 15
    assert probed == [145.0]


def test_a_step_ends_a_stall() -> None:
    _, says, _ = check(Stall(0.0), 20.0)
    assert says
    _, says, _ = check(Stall(21.0), 30.0)
    assert not says


@pytest.mark.parametrize(
    ("waits", "line"),
    [
        ({}, "no task reports a reason"),
        ({"trainer1 on m1": "store2 on m2"}, "trainer1 on m1 waits for store2 on m2"),
        (
            {f"t{n}": "s" for n in range(5)},
            "t0 waits for s; t1 waits for s; t2 waits for s and 2 more wait",
        ),
    ],
)
def test_who_waits_for_whom(waits: dict[str, str], line: str) -> None:
    assert describe(12.3, waits) == f"no iteration for 12 s: {line}"


@pytest.mark.parametrize(
    ("cuts", "accused"),
    [
        ([], None),
        ([("m1", "m2")], "m1"),
        ([("m0", "m2")], "m2"),
        ([("m2", "m0")], "m2"),
        ([("m1", "m3"), ("m2", "m3"), ("m3", "m1")], "m3"),
        # The driver's machine has lost all others: nobody else is to blame more.
        ([("m0", "m1"), ("m0", "m2"), ("m1", "m2")], "m1"),
    ],
)
def test_the_machine_that_most_cannot_reach_is_accused(
    cuts: list[tuple[str, str]], accused: str | None
) -> None:
    assert accuse(cuts, home="m0") == accused
