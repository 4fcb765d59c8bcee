"""The tutorial, typed from its page: from a PyG script to four hosts and a report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testbed import state_file, take_down
from tests.docs.blocks import ROOT, blocks_of
from tests.docs.page_runs import PageRun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

NAME = "headrace"
"""Of a testbed to which the page, like most people, gives no name."""


@pytest.fixture
def _nobodys_testbed(_can_emulate: None) -> Iterator[None]:
    if NAME in state_file.names() and not os.environ.get("CI"):
        pytest.skip("a testbed is up: headrace testbed down")
    take_down(NAME)
    yield
    take_down(NAME)


@pytest.mark.usefixtures("_nobodys_testbed")
def test_the_tutorial_works(tmp_path: Path) -> None:
    page = ROOT / "docs" / "tutorial" / "four-hosts.md"
    PageRun(tmp_path).run(blocks_of(page))
    report = (tmp_path / "report.html").read_text()
    assert "per iteration" in report
    assert NAME not in state_file.names()
