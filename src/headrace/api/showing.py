"""Where to show something: below a notebook's cell, else in a browser."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from tempfile import NamedTemporaryFile


def is_notebook() -> bool:
    """Whether cells are run here, whose output can be HTML."""
    # Only a notebook has loaded IPython before us; its shell in a terminal has no kernel.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def show(value: object, page: str) -> Path | None:
    """Show something.

    Args:
        value: What a notebook shows, with `_repr_html_`.
        page: The same as a whole page, for a browser.

    Returns:
        The file that the browser was given, for where there is none; none in a notebook.
    """
    if is_notebook():
        from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

        display(value)
        return None
    with NamedTemporaryFile(
        "w", prefix="headrace-", suffix=".html", delete=False, encoding="utf-8"
    ) as file:
        file.write(page)
    path = Path(file.name)
    webbrowser.open(path.as_uri())
    return path
