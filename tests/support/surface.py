"""The public surface of headrace: commands with their options, Python names, file formats.

    python -m tests.support.surface > tests/contract/surface.json

writes it anew after a change that is meant.
"""

from __future__ import annotations

import inspect
import json
from typing import Any


def surface() -> dict[str, Any]:
    """All of it, in an order that does not depend on the code's."""
    from headrace.api.documents.schema import SCHEMA_KINDS, json_schema

    return {
        "commands": _commands(),
        "names": _names(),
        "formats": {kind: sorted(_keys(json_schema(kind), "")) for kind in SCHEMA_KINDS},
    }


def _commands() -> dict[str, list[str]]:
    import typer.main

    from headrace.cli import app

    found: dict[str, list[str]] = {}

    def visit(command: Any, path: str) -> None:
        # `params` alone lacks what commands share, as --quiet.
        params = command.get_params(typer.Context(command))
        names = {name for each in params for name in (*each.opts, *each.secondary_opts)}
        found[path] = sorted(names)
        for name in getattr(command, "commands", {}):
            visit(command.commands[name], f"{path} {name}")

    visit(typer.main.get_command(app), "headrace")
    return found


def _names() -> dict[str, list[str]]:
    import headrace

    return {name: _members(getattr(headrace, name)) for name in sorted(headrace.__all__)}


def _members(value: Any) -> list[str]:
    """Parameters of a function; public members of a class and parameters of its constructor."""
    if inspect.isclass(value):
        found = {name for name in dir(value) if not name.startswith("_")}
        found |= {f"({name})" for name in _parameters(value)}
        return sorted(name for name in found if not name.startswith("model_"))
    return _parameters(value) if callable(value) else []


def _parameters(value: Any) -> list[str]:
    try:
        return list(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return []


def _keys(node: Any, path: str) -> list[str]:
    """Paths of all keys a file may have."""
    if isinstance(node, list):
        return [key for each in node for key in _keys(each, path)]
    if not isinstance(node, dict):
        return []
    found = []
    for name, value in node.items():
        if name in ("properties", "$defs"):
            for key, inner in value.items():
                found += [f"{path}/{key}", *_keys(inner, f"{path}/{key}")]
            continue
        if name in ("enum", "const"):
            found += [f"{path}={each}" for each in (value if name == "enum" else [value])]
        found += _keys(value, path)
    return found


if __name__ == "__main__":
    print(json.dumps(surface(), indent=1, sort_keys=True))
