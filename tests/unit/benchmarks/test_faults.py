"""The campaign kills everybody at every moment, and measures how long a run stands still."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch_geometric.nn")

from benchmarks.faults import summary
from tests.support.fault_trials import MOMENTS, STEPS, draw, draw_cut
from tests.support.fault_victims import KINDS
from tests.support.fault_watch import is_same, recovery_s, step_ends


def test_six_trials_in_a_row_have_all_kinds_of_victims() -> None:
    for block in range(10):
        assert {draw(3, 6 * block + i).kind for i in range(6)} == set(KINDS)


def test_eighteen_trials_have_everybody_at_every_moment() -> None:
    pairs = {(case.kind, case.moment) for case in (draw(0, number) for number in range(18))}
    assert pairs == {(kind, moment) for kind in KINDS for moment in MOMENTS}


def test_a_seed_says_who_is_killed_and_when() -> None:
    assert [draw(1, n) for n in range(20)] == [draw(1, n) for n in range(20)]
    assert [draw(1, n) for n in range(20)] != [draw(2, n) for n in range(20)]
    assert draw_cut(1, 0, 10) == draw_cut(1, 0, 10)
    assert draw_cut(1, 0, 10, "m1,m3").between == ("m1", "m3")


def test_kills_come_while_there_is_much_to_do() -> None:
    cases = [draw(0, number) for number in range(60)]
    assert all(case.iteration < STEPS / 2 for case in cases)
    assert all(case.sync == "ps" for case in cases if case.kind == "ps")
    # Machines become others, and with them who drops which activation.
    assert all(case.dropout == 0 for case in cases if case.kind == "raylet")


def test_recovery_ends_with_the_longest_pause() -> None:
    ends = [1.0, 1.1, 1.2, 5.0, 5.1, 5.2]
    assert recovery_s(ends, 1.05) == pytest.approx(3.95)
    assert recovery_s(ends, 5.15) == pytest.approx(0.05)
    assert recovery_s(ends, 6.0) is None


def test_steps_of_all_attempts_count(tmp_path: Path) -> None:
    (tmp_path / "attempt-1").mkdir()
    (tmp_path / "attempt-1" / "trace-trainer0.jsonl").write_text(
        '["exec","trainer0",0,1.0,2.0]\n["flow","a","b",0,1,1.0,9.0]\n'
    )
    (tmp_path / "trace-trainer1.jsonl").write_text('["exec","trainer1",0,1.0,1.5]\n')
    assert step_ends(tmp_path) == [1.5, 2.0]


def test_a_summary_names_what_failed() -> None:
    well = {
        "number": 0, "kind": "store", "moment": "start", "problems": [], "recovery_s": 2.0,
        "machines": ["m0", "m1", "m2", "m3"], "is_same": True, "difference": 0.0,
        "silence_s": 3.0, "first_message_s": 1.0, "left": [],
    }  # fmt: skip
    ill = {
        **well, "number": 1, "problems": ["it does not end"], "silence_s": 20.0,
        "first_message_s": None, "machines": ["m0"], "is_same": False, "difference": 1e-6,
    }  # fmt: skip
    found = summary([well, ill])
    assert found["failed"] == {1: ["it does not end"]}
    assert found["longest_silence_s"] == 20.0
    assert (found["same_to_the_last_bit"], found["on_other_machines"]) == (1, 1)


def test_values_are_the_same_only_to_the_last_bit() -> None:
    torch = pytest.importorskip("torch")
    one = {"a": [torch.tensor([1.0]), 2]}
    assert is_same(one, {"a": [torch.tensor([1.0]), 2]})
    assert not is_same(one, {"a": [torch.tensor([1.0 + 1e-7]), 2]})
