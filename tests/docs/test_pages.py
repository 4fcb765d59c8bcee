"""What README and the pages tell people to type works, and prints what they show."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT, blocks_of
from tests.docs.page_runs import PageRun
from tests.docs.page_sources import RECORD_VARIABLE, digest, is_verified, write_record

pytestmark = pytest.mark.integration

ELSEWHERE = (ROOT / "docs" / "tutorial" / "four-hosts.md",)  # tests/e2e/test_tutorial.py
LOOK_BACK = {"notebook", "reports"}
"""Pages about a run that is over."""

ALWAYS = (ROOT / "README.md",)  # and the tutorial
RUN = [page for page in PAGES if page not in ELSEWHERE and any(b.is_run for b in blocks_of(page))]


def is_due(page: Path) -> bool:
    """Whether a change must run a page: it, or what it uses, is not as it was when it last ran."""
    return page in ALWAYS or not is_verified(page)


@pytest.mark.parametrize(
    "page",
    [page if is_due(page) else pytest.param(page, marks=pytest.mark.campaign) for page in RUN],
    ids=lambda page: page.stem,
)
def test_a_page_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("BROWSER", "true")  # the command that does nothing
    reader = PageRun(tmp_path)
    if page.stem in LOOK_BACK:
        reader.leave_a_run("20261115-1539-sage")
    reader.run(blocks_of(page))
    if os.environ.get(RECORD_VARIABLE):
        write_record(page)


def test_a_page_is_due_when_what_it_uses_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "reference" / "planner.md"
    before = digest(page)
    read = Path.read_bytes
    for name, uses in (
        ("src/headrace/planner/methods/__init__.py", True),
        ("docs/reference/planner.md", True),
        ("src/headrace/runtime/controller/worker_group.py", False),
    ):
        changed = ROOT / name

        def read_changed(path: Path, changed: Path = changed) -> bytes:
            return read(path) + (b"#" if path == changed else b"")

        monkeypatch.setattr(Path, "read_bytes", read_changed)
        digest.cache_clear()
        assert (digest(page) != before) == uses, name
        monkeypatch.undo()
    digest.cache_clear()
