"""The frame of what a notebook shows: its own style, which changes nothing else of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files

from headrace.observability.report.markup import Content, Html, el, join

MOST_ROWS = 24
"""Of a table; a cell that needs scrolling for its first figures is not read."""


def cell(title: str, lead: str, *content: Content) -> Html:
    """Something with a title, a sentence and whatever follows.

    Colours of text and lines are the notebook's own, so that it fits any theme.
    """
    said = el("p", lead) if lead else None
    style = el("style", Html(files(__package__).joinpath("cell.css").read_text(encoding="utf-8")))
    return el("div", style, el("h4", title), said, *content, class_="headrace")


def facts(named: Mapping[str, str]) -> Html:
    """Names and figures, a row each; those without a figure are left out."""
    return el("dl", *(join(el("dt", key), el("dd", what)) for key, what in named.items() if what))


def busiest(loads: Sequence[float]) -> tuple[list[int], str]:
    """Which rows of a long table to show, and what to say of the others."""
    shown = sorted(range(len(loads)), key=lambda row: -loads[row])[:MOST_ROWS]
    hidden = len(loads) - len(shown)
    return sorted(shown), f"... and {hidden} less busy machines" if hidden else ""


def whole_page(title: str, content: str) -> str:
    """A cell as a page of its own, which needs no other file and no network."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
    )
    style = "font-family:system-ui,sans-serif;max-width:1100px;margin:24px auto;padding:0 20px"
    return "<!doctype html>\n" + el("html", head, el("body", Html(content), style=style), lang="en")
