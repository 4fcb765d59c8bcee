"""Values and tables of the performance page as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
Table = list[str]

_NOTHING = 5e-5  # share that is shown as 0 %


def dig(result: Result, path: str) -> Any:
    """A value by its keys, like `start/open_s`; none if it is not there."""
    value: Any = result
    for key in path.split("/"):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def show(value: Any, unit: str = "") -> str:
    """A value as people read it; units are `%` of a share, `s`, `x` for a ratio, or any word."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence | Mapping):
        return str(len(value)) if value else "none"
    if not isinstance(value, int | float):
        return "-"
    if unit == "%":
        return f"{_plain(100 * value if abs(value) >= _NOTHING else 0)} %"
    return f"{_plain(value)} {unit}".strip() if unit != "x" else f"{_plain(value)} times"


def _plain(value: float) -> str:
    """Three digits that count, thousands with commas."""
    if value == 0:
        return "0"
    if abs(value) >= 1000 or (isinstance(value, int) and abs(value) >= 100):
        return f"{value:,.0f}"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.3g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A Markdown table; nothing if it has no rows."""
    if not rows:
        return []
    lines = [head, ["---"] * len(head), *rows]
    return ["", *("| " + " | ".join(cells) + " |" for cells in lines)]


def figures(result: Result, *wanted: tuple[str, str, str]) -> Table:
    """A table of single figures: what, where in the file, in which unit."""
    found = [(what, dig(result, path), unit) for what, path, unit in wanted]
    rows = [(what, show(value, unit)) for what, value, unit in found if value is not None]
    return table(("what", "found"), rows)


def by_name(result: Result, path: str, first: str, *columns: tuple[str, str, str]) -> Table:
    """A table with a row for each entry of a mapping."""
    entries = dig(result, path)
    if not isinstance(entries, Mapping):
        return []
    rows = [
        (name, *(show(dig(entry, where), unit) for _, where, unit in columns))
        for name, entry in entries.items()
        if isinstance(entry, Mapping)
    ]
    return table((first, *(head for head, _, _ in columns)), rows)
