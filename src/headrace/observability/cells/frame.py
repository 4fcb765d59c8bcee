"""Common frame of notebook cells, with scoped styles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files

from headrace.observability.report.markup import Content, Html, el, join

MOST_ROWS = 24
"""Maximum rows of a table in a cell."""


def cell(title: str, lead: str, *content: Content) -> Html:
    """Create a cell with a title and a lead sentence; text colours follow the notebook's theme."""
    paragraph = el("p", lead) if lead else None
    style = el("style", Html(files(__package__).joinpath("cell.css").read_text(encoding="utf-8")))
    return el("div", style, el("h4", title), paragraph, *content, class_="headrace")


def facts(named: Mapping[str, str]) -> Html:
    """Create a list of names and values; empty values are omitted."""
    return el("dl", *(join(el("dt", key), el("dd", what)) for key, what in named.items() if what))


def busiest(loads: Sequence[float]) -> tuple[list[int], str]:
    """Choose the rows of a long table to show; returns them and a note about hidden rows."""
    shown = sorted(range(len(loads)), key=lambda row: -loads[row])[:MOST_ROWS]
    hidden = len(loads) - len(shown)
    return sorted(shown), f"... and {hidden} less busy machines" if hidden else ""


def whole_page(title: str, content: str) -> str:
    """Convert a cell to a self-contained page."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
    )
    style = "font-family:system-ui,sans-serif;max-width:1100px;margin:24px auto;padding:0 20px"
    return "<!doctype html>\n" + el("html", head, el("body", Html(content), style=style), lang="en")
