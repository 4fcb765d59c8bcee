"""What README and the pages tell people to type works, and prints what they show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """Code blocks of a page."""
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def commands(page: Path) -> list[list[str]]:
    """Words of every headrace command of a page, in order."""
    lines = "\n".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("headrace ")]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda p: p.stem)
def test_commands_work(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for words in commands(page):
        words, target = (words[:-2], words[-1]) if ">" in words else (words, None)
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, (words, result.output)
        if target is not None:
            Path(target).write_text(result.stdout)


def test_readme_shows_what_the_rehearsal_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shown = next(text for text in blocks(ROOT / "README.md", "text") if "NIC out" in text)
    printed = [
        CliRunner().invoke(app, words[1:]).stdout
        for words in commands(ROOT / "README.md")
        if words[1] == "simulate"
    ]
    assert shown in printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target


CODE_PAGES = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "scale.md",
    ROOT / "docs" / "walk.md",
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]


@pytest.mark.parametrize("page", CODE_PAGES, ids=lambda page: page.stem)
def test_files_of_the_code_that_pages_name_are_there(page: Path) -> None:
    folders = ("src/headrace", "tests", "benchmarks")
    there = [path.as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    for named in re.findall(r"`([\w/]+\.py)`", page.read_text()):
        assert any(path.endswith(f"/{named}") for path in there), named
