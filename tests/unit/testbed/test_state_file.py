"""The state file of a testbed, which only its user may have written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headrace.core.errors import SpecError
from headrace.testbed import state_file


@pytest.fixture
def above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of all testbeds."""
    folder = tmp_path / "headrace"
    monkeypatch.setattr(state_file, "FOLDER", folder)
    return folder


def test_the_folder_is_for_its_user_and_goes_when_it_is_empty(above: Path) -> None:
    before = os.umask(0)
    try:
        with state_file.locked("bed") as folder:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert stat.S_IMODE(above.stat().st_mode) == 0o755
            assert state_file.read("bed") is None
    finally:
        os.umask(before)
    assert not above.exists()
    assert state_file.read("bed") is None


@pytest.mark.parametrize("which", ["above", "own"])
def test_what_others_can_write_to_is_refused(above: Path, which: str) -> None:
    folder = above / "bed"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "testbed.json").write_text("{}")
    (above if which == "above" else folder).chmod(0o757)
    with pytest.raises(SpecError, match="other users can write to"):
        state_file.read("bed")
    with pytest.raises(SpecError, match="other users can write to"), state_file.locked("bed"):
        pass


def test_a_link_is_refused(above: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    above.mkdir()
    (above / "bed").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpecError, match="other users can write to"), state_file.locked("bed"):
        pass


def test_a_folder_that_goes_at_the_wrong_moment_is_made_again(
    above: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    really = os.open

    def open_late(path: Path, flags: int) -> int:
        opened.append(path)
        if len(opened) == 1:
            Path(path).rmdir()
        return really(path, flags)

    monkeypatch.setattr("os.open", open_late)
    with state_file.locked("bed") as folder:
        assert folder.exists()
    assert len(opened) == 2
