"""For mkdocs: lists every command where the page of commands asks for it.

The page is made of the command line itself each time that the site is built, so it is never old.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

PAGE = "reference/cli.md"
MARK = "<!-- commands -->"
_OPTION = re.compile(r"(?<![`\w])--[a-z][a-z-]*")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put all commands into their page."""
    if page.file.src_uri != PAGE:
        return markdown
    return markdown.replace(MARK, reference())


def reference() -> str:
    """All commands, as Markdown."""
    from typer.main import get_command

    from headrace.cli import app

    root = get_command(app)
    return "\n".join(line for verb in _verbs("headrace", root, 2) for line in verb)


def _verbs(name: str, command: Any, level: int) -> list[list[str]]:
    """Sections of a command and of those below it, by name."""
    inner = getattr(command, "commands", {})
    found = [] if name == "headrace" else [_section(name, command, level)]
    for word in sorted(inner):
        found += _verbs(f"{name} {word}", inner[word], 2 if name == "headrace" else 3)
    return found


def _section(name: str, command: Any, level: int) -> list[str]:
    text = inspect.cleandoc(command.help or "").split("\f")[0].strip()
    lines = ["", f"{'#' * level} {name}", ""]
    told, _, example = text.partition("Example: ")
    lines += [_OPTION.sub(r"`\g<0>`", told.strip()), ""]
    if hasattr(command, "commands"):
        return lines
    lines += ["```text", f"{name} {_usage(command)}".rstrip(), "```", ""]
    lines += _table(command.params)
    shown = [example.strip(), *(command.epilog or "").split("Example:")]
    examples = [" ".join(one.split()) for one in shown if one.strip()]
    if examples:
        lines += ["Examples:" if len(examples) > 1 else "Example:", ""]
        lines += ["```sh", *examples, "```", ""]
    return lines


def _usage(command: Any) -> str:
    """What stands behind the name: needed options, arguments in their order."""
    words = ["[OPTIONS]"]
    for param in command.params:
        if param.param_type_name == "argument":
            name = param.metavar or param.name.upper()
            words.append(name if param.required else f"[{name.strip('[]')}]")
    return " ".join(words)


def _table(params: list[Any]) -> list[str]:
    rows = []
    for param in params:
        if param.param_type_name == "argument":
            continue
        names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
        value = f" `{param.metavar}`" if param.metavar and not param.is_flag else ""
        told = (getattr(param, "help", None) or "").replace("|", "\\|")
        needed = " **Needed.**" if param.required else ""
        rows.append(f"| {names}{value} | {told}{needed}{_default(param)} |")
    return ["| option | meaning |", "| --- | --- |", *rows, ""] if rows else []


def _default(param: Any) -> str:
    value = param.default
    if param.is_flag or value is None or callable(value) or value in ("", (), []):
        return ""
    return "" if "Sentinel" in type(value).__name__ else f" Default: `{value}`."
