"""Registry of display functions for values.

Plans and traces display themselves with functions of higher layers, which `core` must not import.
`headrace/__init__.py` registers them by name and imports their modules on first use.
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
    """A chart: HTML in a notebook, text in a terminal."""

    def text(self, width: int = 100) -> str:
        """Render as text with lines of at most `width` characters."""
        ...

    def show(self) -> Path | None:
        """Show below the notebook cell, or in a browser.

        Returns:
            The file opened in the browser; None in a notebook.
        """
        ...

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write to a file; the suffix selects the format: `.html`, `.txt` or `.png`.

        Raises:
            SpecError: The file cannot be written, or the suffix is unknown.
            MissingExtraError: `.png` needs a package that is not installed.
        """
        ...

    def _repr_html_(self) -> str: ...


def provide(views: Mapping[str, View]) -> None:
    """Register display functions by name."""
    _VIEWS.update(views)


def view(name: str) -> View:
    """Return the registered function."""
    return _VIEWS[name]
