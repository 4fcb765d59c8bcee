"""Which headrace this is; machines of a run must have the same one."""

from __future__ import annotations

from importlib import import_module


def own_version() -> str:
    """The version of this installation."""
    # Not by name: the package's front door imports the floors above this one.
    version: str = import_module("headrace").__version__
    return version
