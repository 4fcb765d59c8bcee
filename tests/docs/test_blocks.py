"""Every block of README and the pages is run, or says why not; what is not run is still grammar."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from headrace.cli import app
from tests.docs.blocks import PAGES, Block, blocks_of, without_blocks
from tests.docs.page_runs import shows

_BEFORE_COMMANDS = ("&&", "||", "sudo", "exec", "--")
NOT_RUN = [block for page in PAGES for block in blocks_of(page) if not block.is_run]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_has_a_class(page: Path) -> None:
    assert [(b.place, b.problem) for b in blocks_of(page) if b.problem is not None] == []
    # Fences that are not understood would not be run, and nobody would notice.
    assert re.findall(r"^\s*(?:```|~~~).*", without_blocks(page), re.MULTILINE) == []


@pytest.mark.parametrize("block", [b for b in NOT_RUN if b.is_shell], ids=lambda b: b.place)
def test_commands_that_are_not_run_exist(block: Block) -> None:
    subprocess.run(["bash", "-n", "-c", block.text], check=True)
    for line in block.text.replace("\\\n", " ").splitlines():
        words = ["&&", *shlex.split(line, comments=True)]
        for before, word, number in zip(words, words[1:], range(2, len(words) + 1), strict=False):
            if word == "headrace" and before in _BEFORE_COMMANDS:
                parse([word for word in words[number:] if word not in (">", *_BEFORE_COMMANDS[:2])])


def parse(words: list[str]) -> None:
    """Let the command line read a command, without carrying it out."""
    found: Any = typer.main.get_command(app)
    name = "headrace"
    context = found.make_context(name, list(words), resilient_parsing=True)
    while words and words[0] in getattr(found, "commands", {}):
        name, *words = words
        found = found.commands[name]
    assert not hasattr(found, "commands") or words[0].startswith("-"), words
    cut = words.index("--") if "--" in words else len(words)
    known = {option for param in found.get_params(context) for option in param.opts}
    given = {word.partition("=")[0] for word in words[:cut] if word.startswith("-")}
    assert given <= known | {"-h", "--help"}, (name, given - known)


@pytest.mark.parametrize(
    "block",
    [b for b in NOT_RUN if b.language in ("python", "yaml", "json")],
    ids=lambda b: b.place,
)
def test_code_that_is_not_run_can_be_read(block: Block) -> None:
    if block.language == "python":
        compile(block.text, block.place, "exec")
    elif block.language == "yaml":
        yaml.safe_load(block.text)
    else:
        json.loads(block.text)


def test_a_block_without_a_class_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```\nls\n```\n"
        "<!-- not run -->\n```sh\nls\n```\n"
        "<!-- not run: needs a moon -->\n\n```sh\nls\n```\n"
        '- item\n\n    ```yaml title="a.yaml"\n    a: 1\n    ```\n'
        "<!-- numbers differ -->\n```sh\nls\n```\n"
    )
    first, second, third, fourth, fifth = blocks_of(page)
    assert "no language" in str(first.problem)
    assert "say why" in str(second.problem)
    assert (third.problem, third.is_run, third.why) == (None, False, "needs a moon")
    assert (fourth.problem, fourth.title, fourth.text) == (None, "a.yaml", "a: 1\n")
    assert "for output" in str(fifth.problem)


def test_output_is_compared() -> None:
    printed = "first\nsecond 12.5 ms  m0\nthird\nlast\n"
    assert shows("first\n...\nlast\n", printed)
    assert shows("second 12.5 ms  m0\n", printed)
    assert not shows("second 13.5 ms  m0\n", printed)
    assert shows("second 7 s m0\n", printed, numbers_differ=True)
    assert not shows("second 7 s m1x\n", printed, numbers_differ=True)
    assert not shows("last\n...\nfirst\n", printed)
