"""How values show themselves, where only floors above can say how.

A plan explains itself and a trace draws itself, but planning and drawing are done upstairs. Whoever
wires the floors provides the functions by name: `headrace/__init__.py`, which loads each when it is
first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import os
    from pathlib import Path

View = Callable[..., Any]

_VIEWS: dict[str, View] = {}


class Picture(Protocol):
    """Something to look at: a notebook shows its HTML, a shell its text."""

    def text(self, width: int = 100) -> str:
        """As lines of letters, which are so long."""
        ...

    def show(self) -> Path | None:
        """Show it below a notebook's cell, else in a browser.

        Returns:
            The file that the browser was given; none in a notebook.
        """
        ...

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file, whose name says how: `.html`, `.txt` or `.png`.

        Raises:
            SpecError: It cannot be written, or not like this.
            MissingExtraError: Pictures need a package that is not installed.
        """
        ...

    def _repr_html_(self) -> str: ...


def provide(views: Mapping[str, View]) -> None:
    """Name the functions that show values."""
    _VIEWS.update(views)


def view(name: str) -> View:
    """The function of that name."""
    return _VIEWS[name]
