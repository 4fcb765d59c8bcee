"""A run's folder is for one user and one run."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.prefork.identity import namespace
from headrace.runtime.run_dir.temp_dirs import keep_logs, remove_forgotten, run_folder


def test_only_its_user_can_look_and_it_is_gone_at_the_end() -> None:
    with run_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "file").write_text("x")
    assert not folder.exists()


def test_logs_of_failed_runs_stay_without_their_keys(tmp_path: Path) -> None:
    kept = []
    for number in range(12):
        run = tmp_path / f"run-{number}"
        run.mkdir()
        assert keep_logs(run) is None
        for name in ("keys", "store-0.log"):
            (run / name).write_text(f"{name} of {number}")
        (run / "store-1.log").touch()
        place = keep_logs(run)
        assert place is not None
        os.utime(place, (number, number))
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert [file.name for file in place.iterdir()] == ["store-0.log"]
        assert (place / "store-0.log").read_text() == f"store-0.log of {number}"
        kept.append(place)
    assert [place.exists() for place in kept] == [False] * 2 + [True] * 10


def test_what_others_call_like_kept_logs_does_not_count(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "store-0.log").write_text("x")
    first = keep_logs(run)
    assert first is not None
    (tmp_path / "elsewhere").mkdir()
    for number in range(20):
        name = f"headrace-logs-{os.getuid()}-{number}"
        (tmp_path / name).symlink_to("gone" if number % 2 else "elsewhere")
    (run / "store-0.log").write_text("x")
    assert keep_logs(run) is not None
    assert first.exists()
    assert (tmp_path / "elsewhere").exists()


def test_folders_of_killed_runs_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    forgotten = tmp_path / f"headrace-run-{namespace()}.{ended.pid}-abc"
    kept = [
        tmp_path / f"headrace-run-{namespace()}.{os.getpid()}-abc",
        tmp_path / f"headrace-run-1.{ended.pid}-elsewhere",
        tmp_path / "headrace-run-mine",
        tmp_path / "other",
    ]
    for folder in (forgotten, *kept):
        folder.mkdir()
    link = tmp_path / f"headrace-run-{namespace()}.{ended.pid}-link"
    link.symlink_to(tmp_path / "other")
    remove_forgotten(tmp_path)
    assert not forgotten.exists()
    assert all(folder.exists() for folder in (*kept, link))


def test_a_failure_removes_it_too() -> None:
    def fail() -> None:
        with run_folder() as folder:
            seen.append(folder)
            raise ValueError

    seen: list[Path] = []
    with pytest.raises(ValueError, match=r"^$"):
        fail()
    assert not seen[0].exists()
