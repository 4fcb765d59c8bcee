"""What README and the pages tell people to type works, and prints what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT, blocks_of
from tests.docs.page_runs import PageRun

pytestmark = pytest.mark.integration

ELSEWHERE = (ROOT / "docs" / "tutorial.md",)  # tests/e2e/test_tutorial.py
LOOK_BACK = {"notebook", "report"}
"""Pages about a run that is over."""

RUN = [page for page in PAGES if page not in ELSEWHERE and any(b.is_run for b in blocks_of(page))]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_a_page_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("BROWSER", "true")  # the command that does nothing
    reader = PageRun(tmp_path)
    if page.stem in LOOK_BACK:
        reader.leave_a_run("20261115-1539-sage")
    reader.run(blocks_of(page))
