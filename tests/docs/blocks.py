"""Code blocks of the pages, and what becomes of each.

A block is run, in the order of its page and in one folder, unless a comment above it says why not:

    <!-- not run: needs a Ray cluster -->

A block with a `title` is a file of that name, which later blocks may use. A `text` block is output:
what the blocks above it have printed, where a line `...` stands for any lines. Above it may stand

    <!-- numbers differ -->           times, paths and ids are others each time, words are not
    <!-- not checked: a drawing -->   it is not output, or cannot be had here
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))

RUN = ("bash", "sh", "python", "yaml", "json")
"""What is run or, if it is data, read."""

_BLOCK = re.compile(
    r"(?:^[ ]*<!--\s*(?P<mark>not run|not checked|numbers differ)"
    r"(?::\s*(?P<why>[^>]*?))?\s*-->\n\n?)?"
    r"^(?P<indent>[ ]*)```(?P<language>[^\s`]*)(?:[ ]+title=\"(?P<title>[^\"]+)\")?[ ]*\n"
    r"(?P<text>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One code block.

    Attributes:
        page: Its page.
        line: Where it begins there.
        language: As its fence says.
        title: Name of the file that it is, if it is one.
        mark: `not run`, `not checked`, `numbers differ`, or nothing.
        why: What stands after the mark.
        text: What is in it.
    """

    page: Path
    line: int
    language: str
    title: str | None
    mark: str | None
    why: str | None
    text: str

    @property
    def is_shell(self) -> bool:
        return self.language in ("bash", "sh")

    @property
    def is_run(self) -> bool:
        """Whether something is done with it beyond a look at its grammar."""
        return self.language in RUN and self.mark != "not run"

    @property
    def is_output(self) -> bool:
        """Whether it must be what was printed."""
        return self.language == "text" and self.mark != "not checked"

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def problem(self) -> str | None:
        """What is wrong with its class, if anything is."""
        if self.mark in ("not run", "not checked") and not self.why:
            return "say why: <!-- not run: needs a Ray cluster -->"
        for named in re.findall(r"[\w/]+\.py", self.why or ""):
            if not (ROOT / named).exists():
                return f"there is no {named}"
        if self.language == "text":
            return "output is `not checked`, not `not run`" if self.mark == "not run" else None
        if self.mark not in (None, "not run"):
            return f"`{self.mark}` is for output, whose language is text"
        if self.language not in RUN and self.mark is None:
            return f"nobody can run {self.language or 'no language'}: say <!-- not run: why -->"
        return None


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        indent = len(match["indent"])
        lines = [line[indent:] for line in match["text"].splitlines(keepends=True)]
        found.append(
            Block(
                page=page,
                line=text.count("\n", 0, match.start("language")) + 1,
                language=match["language"],
                title=match["title"],
                mark=match["mark"],
                why=match["why"],
                text="".join(lines),
            )
        )
    return found


def without_blocks(page: Path) -> str:
    """What a page says beside its code."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))
