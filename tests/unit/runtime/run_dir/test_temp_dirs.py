"""A run's folder is for one user and one run."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.prefork.identity import namespace
from headrace.runtime.run_dir.temp_dirs import remove_forgotten, run_folder


def test_only_its_user_can_look_and_it_is_gone_at_the_end() -> None:
    with run_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "file").write_text("x")
    assert not folder.exists()


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
