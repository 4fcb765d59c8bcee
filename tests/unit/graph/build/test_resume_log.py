"""A killed run knows what it did, and nothing more."""

from __future__ import annotations

from pathlib import Path

from headrace.graph.build.resume_log import ResumeLog


def test_steps_survive(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    first = ResumeLog(path, "work")
    assert not first.has_begun
    first.finish("a", {"crc32": 7})
    first.finish("b")
    second = ResumeLog(path, "work")
    second.finish("c")
    third = ResumeLog(path, "work")
    assert third.has_begun
    assert [third.is_done(step) for step in "abcd"] == [True, True, True, False]
    assert third.result("a") == {"crc32": 7}
    assert third.result("d") is None
    assert [each.name for each in tmp_path.iterdir()] == ["progress.json"]


def test_other_work_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    ResumeLog(path, "work").finish("a")
    other = ResumeLog(path, "other work")
    assert not other.is_done("a")
    other.finish("b")
    assert not ResumeLog(path, "work").has_begun


def test_torn_lines_count_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    progress = ResumeLog(path, "work")
    progress.finish("a")
    progress.finish("b")
    path.write_text(path.read_text()[:-4])
    again = ResumeLog(path, "work")
    assert (again.is_done("a"), again.is_done("b")) == (True, False)
    again.finish("c")
    assert ResumeLog(path, "work").is_done("c")


def test_damaged_files_count_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    for text in ("", "{", '"work"\n7\n', "\x00"):
        path.write_text(text)
        assert not ResumeLog(path, "work").has_begun
