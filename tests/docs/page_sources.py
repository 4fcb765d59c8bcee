"""What a page uses, so that it is run when that changes.

The record of a page, `verified/PAGE`, has two digests of when it last ran: of the page with the
repository's files that it names, and of these with every module of headrace that its commands and
names reach by imports. If the first has changed, the page is run. If only modules have changed,
which may be so for all pages, it is run for every third state of the modules, chosen by digest.
`make pages` runs all pages and writes the records.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import grimp

import headrace
from tests.docs.blocks import ROOT, blocks_of

RECORDS = Path(__file__).with_name("verified")
RECORD_VARIABLE = "HEADRACE_RECORD_PAGES"
"""Set to have the record of each page written that works."""

_COMMAND = re.compile(r"\bheadrace\s+([a-z]+)")
_NAME = re.compile(r"\bheadrace\.([A-Za-z_]+)|\bfrom headrace import ([^\n]+)")
_SHARED = ("headrace.cli", "headrace.cli.options", "headrace.cli.completions", "headrace.cli.app")
"""What all commands import, and which imports, in functions, what only some of them need."""

_PROCESSES = (
    "headrace.graph.sampler_worker.__main__",
    "headrace.graph.store.__main__",
    "headrace.runtime.trainer.__main__",
    "headrace.training.parameter_server.__main__",
)
"""What a run starts, without importing it."""

_FILE = re.compile(r"\b(?:examples|benchmarks|tests)/[\w./-]+")


SAMPLED = 3
"""Of so many pages whose modules have changed, one is run."""


def is_due(page: Path) -> bool:
    """Whether a page must be run because of what has changed since it ran."""
    record = _record(page)
    words = record.read_text().split() if record.exists() else []
    if words == [own_digest(page), digest(page)]:
        return False
    return words[:1] != [own_digest(page)] or int(digest(page), 16) % SAMPLED == 0


def write_record(page: Path) -> None:
    """Note that a page works."""
    RECORDS.mkdir(exist_ok=True)
    _record(page).write_text(f"{own_digest(page)}\n{digest(page)}\n")


def _record(page: Path) -> Path:
    return RECORDS / page.stem


def own_digest(page: Path) -> str:
    """Of a page and the files that it names."""
    return _digest(page, _named_files(_code(page)))


@cache
def digest(page: Path) -> str:
    """Of a page and all that it uses."""
    code = _code(page)
    return _digest(page, _named_files(code) | _sources(code))


def _code(page: Path) -> str:
    return "\n".join(block.text for block in blocks_of(page) if block.is_run)


def _digest(page: Path, files: set[Path]) -> str:
    found = hashlib.sha256(page.read_bytes())
    for path in sorted(files):
        found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _named_files(code: str) -> set[Path]:
    found: set[Path] = set()
    for name in _FILE.findall(code):
        path = ROOT / name.rstrip("/.")
        if path.is_dir():
            found |= {each for each in path.rglob("*.*") if each.is_file()}
        elif path.is_file():
            found.add(path)
    return {path for path in found if "__pycache__" not in path.parts}


def _sources(code: str) -> set[Path]:
    """Files of all modules that commands and names of a page reach."""
    texts = [code, *(path.read_text() for path in _named_files(code) if path.suffix == ".py")]
    wanted = {"headrace.cli"} if _COMMAND.search(code) else set()
    for text in texts:
        verbs = _COMMAND.findall(text)
        wanted |= {module for module in _imports().modules if _is_one_of(verbs, module)}
        for name, names in _NAME.findall(text):
            for each in (name or names).replace("(", " ").replace(",", " ").split():
                wanted |= _home(each)
    if "headrace.cli.commands.run.run" in wanted:
        wanted |= set(_PROCESSES)
    files = (_file(module) for module in _reached(wanted))
    return {path for path in files if path is not None}


def _reached(wanted: set[str]) -> set[str]:
    graph = _imports()
    reached: set[str] = set()
    ahead = wanted & graph.modules
    while ahead:
        module = ahead.pop()
        reached.add(module)
        if module not in _SHARED:
            ahead |= graph.find_modules_directly_imported_by(module) - reached
    return reached


def _is_one_of(verbs: list[str], module: str) -> bool:
    folder, _, name = module.rpartition(".")
    return name in verbs and folder.startswith("headrace.cli.commands.")


def _home(name: str) -> set[str]:
    home = headrace._HOME_OF.get(name)
    return set() if home is None else {home}


@cache
def _imports() -> Any:
    return grimp.build_graph("headrace", cache_dir=None)


@cache
def _file(module: str) -> Path | None:
    base = ROOT / "src" / Path(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.exists():
            return path
    return None
