"""The journal of a sweep."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from headrace.core.errors import SpecError
from headrace.jobs.journal import Journal, TrialBegun, TrialEnded, TrialMade, read_journal

MADE = TrialMade(number=0, settings={"lr": 0.1, "opt": "adam", "norm": True, "width": 8})
BEGUN = TrialBegun(number=0, attempt=1, at_s=1.5)
ENDED = TrialEnded(number=0, state="done", figures={"accuracy": 0.5}, at_s=2.5)


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        for event in (MADE, BEGUN, ENDED):
            journal.append(event)
    assert read_journal(path) == [MADE, BEGUN, ENDED]
    assert isinstance(read_journal(path)[0], TrialMade)
    with Journal(path) as journal:
        assert journal.events == [MADE, BEGUN, ENDED]


def test_every_prefix_of_a_journal_can_be_continued(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.append(MADE)
        journal.append(BEGUN)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        with Journal(path) as journal:
            known = [MADE, BEGUN][: (size >= first) + (size == len(whole))]
            assert journal.events == known
            journal.append(ENDED)
        assert read_journal(path) == [*known, ENDED]


def test_no_flipped_bit_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.append(MADE)
        journal.append(ENDED)
    whole = path.read_bytes()
    for at in range(0, 8 * len(whole), 5):
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << at % 8
        path.write_bytes(damaged)
        # A damaged end of the last line looks like a line that is not complete.
        is_end = at // 8 == len(whole) - 1
        with nullcontext() if is_end else pytest.raises(SpecError, match="damaged"):
            assert read_journal(path) == [MADE]


def test_two_processes_cannot_run_one_sweep(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal"), pytest.raises(SpecError, match="another process"):
        Journal(tmp_path / "journal")
