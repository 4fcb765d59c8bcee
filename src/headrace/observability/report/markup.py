"""HTML construction with automatic escaping."""

from __future__ import annotations

from html import escape

_VOID = frozenset({"br", "hr", "meta", "rect", "line", "path", "polyline", "circle"})
_CLOSED = frozenset({"rect", "line", "path", "polyline", "circle"})


class Html(str):
    """Text that is already HTML and is not escaped."""

    __slots__ = ()


Content = str | float | None
"""Content of an element: text, HTML, a number, or None."""


def el(name: str, /, *content: Content, **attributes: str | float | None) -> Html:
    """Create an element.

    Args:
        name: Name of the element.
        *content: Content, escaped unless it is `Html`; None is omitted.
        **attributes: Attributes; `_` becomes `-`, a trailing `_` is removed (`class_`), None is
            omitted.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{written}{'/' if name in _CLOSED else ''}>")
    return Html(f"<{name}{written}>{join(*content)}</{name}>")


def join(*content: Content) -> Html:
    """Concatenate contents, escaping what is not `Html`."""
    return Html("".join(text(each) for each in content if each is not None))


def text(content: Content) -> Html:
    """Escape content unless it is `Html`."""
    return content if isinstance(content, Html) else Html(escape(str(content), quote=True))


def table(heads: tuple[str, ...], rows: list[tuple[Content, ...]], numbers: str = "") -> Html:
    """Create a scrollable table; `numbers` has a letter per column, `n` for numbers."""
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
    """Convert text between backticks to `code` elements."""
    parts = words.split("`")
    if len(parts) % 2 == 0:
        return text(words)
    return join(*(el("code", part) if i % 2 else part for i, part in enumerate(parts)))
