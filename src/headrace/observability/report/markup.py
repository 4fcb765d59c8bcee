"""HTML that cannot be broken by what is put into it: plain text is escaped, always."""

from __future__ import annotations

from html import escape

_VOID = frozenset({"br", "hr", "meta", "rect", "line", "path", "polyline", "circle"})
_CLOSED = frozenset({"rect", "line", "path", "polyline", "circle"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = str | float | None
"""What stands in an element: text, HTML, a number, or nothing."""


def el(name: str, /, *content: Content, **attributes: str | float | None) -> Html:
    """An element; whatever is not `Html` is escaped.

    Args:
        name: Of the element.
        *content: What is in it; `None` is left out.
        **attributes: By name, `_` for `-` and one at the end left out (`class_`); `None` is left
            out.
    """
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{said}{'/' if name in _CLOSED else ''}>")
    return Html(f"<{name}{said}>{join(*content)}</{name}>")


def join(*content: Content) -> Html:
    """Several things after each other; whatever is not `Html` is escaped."""
    return Html("".join(text(each) for each in content if each is not None))


def text(content: Content) -> Html:
    """One thing; escaped unless it is `Html`."""
    return content if isinstance(content, Html) else Html(escape(str(content), quote=True))


def table(heads: tuple[str, ...], rows: list[tuple[Content, ...]], numbers: str = "") -> Html:
    """A table that scrolls inside its own box where it is too wide.

    Args:
        heads: Of the columns.
        rows: Cells; the first of a row is its head.
        numbers: A letter per column: `n` for numbers, anything else for text.
    """
    kinds = [("n" if letter == "n" else None) for letter in numbers.ljust(len(heads), "t")]
    head = [
        el("th", each, class_=kind, scope="col") for each, kind in zip(heads, kinds, strict=True)
    ]
    body = [
        el(
            "tr",
            *(
                el("td" if column else "th", cell, class_=kind, scope=None if column else "row")
                for column, (cell, kind) in enumerate(zip(row, kinds, strict=True))
            ),
        )
        for row in rows
    ]
    whole = el("table", el("thead", el("tr", *head)), el("tbody", *body))
    return el("div", whole, class_="scroll", tabindex="0")


def coded(words: str) -> Html:
    """Text in which what stands between backticks is code."""
    parts = words.split("`")
    if len(parts) % 2 == 0:
        return text(words)
    return join(*(el("code", part) if i % 2 else part for i, part in enumerate(parts)))
