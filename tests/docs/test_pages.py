"""What README and the pages tell people to type works, and prints what they show."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs import page_sources
from tests.docs.blocks import PAGES, ROOT, blocks_of
from tests.docs.page_runs import PageRun
from tests.docs.page_sources import RECORD_VARIABLE, digest, own_digest, write_record

pytestmark = pytest.mark.integration

ELSEWHERE = (ROOT / "docs" / "tutorial" / "four-hosts.md",)  # tests/e2e/test_tutorial.py
LOOK_BACK = {"notebook", "reports"}
"""Pages about a run that is over."""

ALWAYS = (ROOT / "README.md",)  # and the tutorial
RUN = [page for page in PAGES if page not in ELSEWHERE and any(b.is_run for b in blocks_of(page))]


def is_due(page: Path) -> bool:
    """Whether a change must run a page."""
    return page in ALWAYS or page_sources.is_due(page)


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


def test_a_changed_page_is_due_and_one_of_three_with_changed_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_sources, "RECORDS", tmp_path)
    pages = RUN
    assert all(map(page_sources.is_due, pages)), "without a record"
    for page in pages:
        write_record(page)
    assert not any(map(page_sources.is_due, pages))
    for page in pages:
        (tmp_path / page.stem).write_text(f"{own_digest(page)}\nother modules\n")
    sampled = [page for page in pages if int(digest(page), 16) % page_sources.SAMPLED == 0]
    assert [page for page in pages if page_sources.is_due(page)] == sampled
    for page in pages:
        (tmp_path / page.stem).write_text(f"another page\n{digest(page)}\n")
    assert all(map(page_sources.is_due, pages))


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
