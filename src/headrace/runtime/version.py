"""Which headrace this is; machines of a run must have the same one."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("ray", "torch", "torch_geometric", "pyarrow", "numpy")


def own_version() -> str:
    """The version of this installation."""
    # Not by name: the package's front door imports the floors above this one.
    own: str = import_module("headrace").__version__
    return own


def versions() -> dict[str, str]:
    """Versions of what a run here rests on, for whoever wants to do it again."""
    found = {"headrace": own_version(), "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
