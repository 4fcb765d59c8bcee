"""What a display knows after each message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.runtime.callbacks.progress import Progress
from headrace.runtime.protocol.trainer_messages import (
    BatchProgress,
    BatchRequested,
    Note,
    Report,
)


def batches(**changes: Any) -> BatchProgress:
    stages = {"sample_s": 1.0, "fetch_s": 3.0, "num_bytes": 1e9}
    return replace(BatchProgress(True, 3, 10, 300, 2.0, 0.1, stages), **changes)


def test_a_busy_trainer_waits_for_nothing() -> None:
    progress = Progress().after(batches())
    assert (progress.batch, progress.num_batches) == (3, 10)
    assert progress.speed == "150 samples/s  waits 5%"
    assert progress.waits_for == "nothing"


def test_a_waiting_trainer_waits_for_the_slowest_stage() -> None:
    assert Progress().after(batches(waited_s=1.0)).waits_for == "features"
    stages = {"here_s": 1.0}
    waiting = Progress().after(batches(waited_s=1.0, stages=stages))
    assert waiting.speed == "150 samples/s  waits 50%, sampling in the trainer"
    assert Progress().after(batches(waited_s=1.0, stages={})).waits_for == "batches"


def test_a_cache_shows_how_often_it_helps() -> None:
    stages = {"fetch_s": 0.1, "cache_hits": 3.0, "cache_misses": 1.0}
    assert Progress().after(batches(stages=stages)).speed == "150 samples/s  waits 5%  cache 75%"


def test_evaluation_and_other_messages_change_nothing() -> None:
    before = Progress().after(batches())
    assert before.after(batches(trains=False, batch=7)) == before
    assert before.after(Note("later")) == before


def test_a_script_that_loops_over_a_loader_has_asked() -> None:
    assert not Progress().has_asked
    assert Progress().after(BatchRequested()).after(batches()).has_asked


def test_reports_are_kept() -> None:
    progress = Progress()
    for epoch in (1, 2):
        progress = progress.after(Report({"epoch": epoch}))
    assert progress.figures == {"epoch": 2}
    assert progress.reports == ({"epoch": 1}, {"epoch": 2})
    assert progress.speed == ""
