"""What goes wrong between a client and a store."""

from __future__ import annotations

from headrace.core.errors import HeadraceError


class StoreError(HeadraceError):
    """A store refused, did not answer in time, or is gone; the message names it and its machine."""

    exit_code = 5


class StoreLostError(StoreError):
    """A store does not answer, or is gone: asked again later, it may answer."""
