"""Versions of headrace and its dependencies."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from headrace.prefork.identity import own_version

_PACKAGES = ("ray", "torch", "torch_geometric", "pyarrow", "numpy")


def versions() -> dict[str, str]:
    """Versions of headrace, Python and the main dependencies, to reproduce a run."""
    found = {"headrace": own_version(), "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
