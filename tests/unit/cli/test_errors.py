"""Exit codes and links: what the command line does and what the pages say agree."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest

from headrace.cli import EPILOG, app, errors
from headrace.core.errors import DOCS_URL, ERRORS_PAGE, HeadraceError
from tests.unit.cli.test_help import COMMANDS, help_of

ROOT = Path(__file__).parents[3]
ERROR_MODULES = ("core.errors", "rpc.errors", "graph.sampler_worker.channels.errors")
ROW = re.compile(r"^\| (\d+) \| (?:`(\w+)`)? ?\|", re.MULTILINE)


def families() -> list[type[HeadraceError]]:
    """Every class of errors."""
    for name in ERROR_MODULES:
        importlib.import_module(f"headrace.{name}")
    found, todo = [], [HeadraceError]
    while todo:
        found.append(todo.pop())
        todo += found[-1].__subclasses__()
    return [each for each in found if each.__module__.startswith("headrace.")]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_page_lists_every_exit_code() -> None:
    listed = {
        int(code): name for code, name in ROW.findall((ROOT / "docs" / ERRORS_PAGE).read_text())
    }
    own = {each.exit_code: each.__name__ for each in families() if "exit_code" in vars(each)}
    beside = {0: "", errors.BUG_EXIT_CODE: "", errors.INTERRUPTED_EXIT_CODE: ""}
    assert listed == own | beside


def test_no_family_of_errors_is_elsewhere() -> None:
    defined = re.compile(r"^    exit_code = \d", re.MULTILINE)
    source = ROOT / "src" / "headrace"
    there = {p for p in source.rglob("*.py") if defined.search(p.read_text())}
    assert there == {source / f"{name.replace('.', '/')}.py" for name in ERROR_MODULES}


def test_the_help_names_the_codes_and_the_page() -> None:
    shown = " ".join(re.sub(r"[│╭╰─╮╯]", " ", help_of(())).split())
    assert " ".join(EPILOG.split()) in shown
    for code in {each.exit_code for each in families()} - {5, 6, 7} | {0, 70, 130}:
        assert re.search(rf"\b{code} ", EPILOG)
    assert "5 to 7" in EPILOG


@pytest.mark.parametrize("page", sorted({*errors.PAGES.values(), ERRORS_PAGE}))
def test_pages_of_commands_are_there(page: str) -> None:
    check(page)


def test_pages_of_errors_are_there() -> None:
    for family in families():
        if family.page:
            check(family.page)


def check(link: str) -> None:
    page, _, anchor = link.partition("#")
    assert (ROOT / "docs" / page).is_file()
    assert not anchor or anchor in anchors(ROOT / "docs" / page)


def test_every_command_has_a_page() -> None:
    verbs = {words[0] for words in COMMANDS if words} - {"doctor"}  # whose page is that of errors
    assert verbs == set(errors.PAGES)
    assert app.info.name == "headrace"


def test_links_lead_where_the_project_lives() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Documentation"] == f"{DOCS_URL}index.md"
