"""Errors of RPC calls."""

from __future__ import annotations

from headrace.core.errors import HeadraceError


class StoreError(HeadraceError):
    """A store refused, timed out or is unreachable; the message names it and its machine."""

    exit_code = 5


class DiskFullError(HeadraceError):
    """A store has no space left on its disk; it would refuse the request again."""


class StoreLostError(StoreError):
    """A store does not answer or is unreachable; a later retry may succeed."""
