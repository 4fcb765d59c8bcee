"""What README and the pages point at is there; their code is run by `tests/docs`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT, without_blocks


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", without_blocks(page)):
        assert (page.parent / target).exists(), target


CODE_PAGES = [
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs" / "explanation" / f"{name}.md" for name in ("data-path", "decisions", "scale")),
]


@pytest.mark.parametrize("page", CODE_PAGES, ids=lambda page: page.stem)
def test_files_of_the_code_that_pages_name_are_there(page: Path) -> None:
    folders = ("src/headrace", "tests", "benchmarks")
    there = [path.as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    for named in re.findall(r"`([\w/]+\.py)`", page.read_text()):
        assert any(path.endswith(f"/{named}") for path in there), named


def test_names_of_the_code_on_the_data_path_are_there() -> None:
    page = ROOT / "docs" / "explanation" / "data-path.md"
    files = [path for folder in ("src", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    there = {word for path in files for word in re.findall(r"\w+", path.read_text())}
    for named in re.findall(r"`([A-Za-z_][\w.]*)`", without_blocks(page)):
        if not named.endswith(".py"):
            assert set(named.split(".")) <= there, named
