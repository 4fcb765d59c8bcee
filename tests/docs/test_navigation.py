"""The pages are in groups of at most nine, and all of them are in the navigation."""

from __future__ import annotations

from collections import Counter
from typing import Any

import yaml

from tests.docs.blocks import PAGES, ROOT

GROUPS = {
    "Tutorial": "tutorial",
    "Train a model": "howto",
    "Run on a cluster": "howto",
    "Reference": "reference",
    "Explanation": "explanation",
}
"""Folder of each group."""

MOST_PAGES = 9


def navigation() -> dict[str, Any]:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    return {title: pages for entry in nav for title, pages in entry.items()}


def listed(pages: list[dict[str, str]]) -> list[str]:
    return [path for page in pages for path in page.values()]


def test_there_are_groups_of_at_most_nine_pages() -> None:
    nav = navigation()
    assert nav.pop("Home") == "index.md"
    assert list(nav) == list(GROUPS)
    for group, folder in GROUPS.items():
        paths = listed(nav[group])
        assert 1 <= len(paths) <= MOST_PAGES, group
        assert {path.rpartition("/")[0] for path in paths} == {folder}


def test_every_page_is_in_the_navigation_once() -> None:
    paths = ["index.md", *(path for group in GROUPS for path in listed(navigation()[group]))]
    docs = ROOT / "docs"
    there = [path.relative_to(docs).as_posix() for path in PAGES if path.is_relative_to(docs)]
    assert sorted(paths) == sorted(there)


def test_records_of_pages_belong_to_one_page_each() -> None:
    stems = Counter(page.stem for page in PAGES)
    assert max(stems.values()) == 1
    records = {path.name for path in (ROOT / "tests" / "docs" / "verified").iterdir()}
    assert records <= set(stems)
