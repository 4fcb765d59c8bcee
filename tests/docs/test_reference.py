"""The reference pages have every command, every option and every name."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from typer.main import get_command

import headrace
from headrace.cli import app
from tests.docs.blocks import ROOT

spec = importlib.util.spec_from_file_location("cli_reference", ROOT / "docs" / "cli_reference.py")
assert spec is not None
assert spec.loader is not None
hook = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hook)


def leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """All commands that do something, with their names."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for word, below in inner.items():
        yield from leaves(f"{name} {word}", below)


def test_every_command_and_option_is_on_the_page() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reference/cli.md"))
    text = hook.on_page_markdown((ROOT / "docs" / "reference" / "cli.md").read_text(), page)
    sections = dict(re.findall(r"^#{2,3} (headrace .*)\n((?:(?!^#).*\n)*)", text, re.MULTILINE))
    found = dict(leaves("headrace", get_command(app)))
    assert "headrace testbed up" in found
    for name, command in found.items():
        for param in command.params:
            if param.param_type_name == "option":
                assert f"`{param.opts[0]}`" in sections[name], name
        assert "Example" in sections[name], name


def test_other_pages_are_left_alone() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    assert hook.on_page_markdown("a <!-- commands -->", page) == "a <!-- commands -->"


def test_every_public_name_is_on_the_page() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text()
    listed = re.findall(r"^::: headrace\.(\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(set(headrace.__all__) - {"__version__"})
