"""What goes wrong while a run runs."""

from __future__ import annotations

from headrace.core.errors import HeadraceError


class RunError(HeadraceError):
    """A task of a run did not start or is gone; the message names it and its machine."""

    exit_code = 7


class NotFiniteError(RunError):
    """A loss or a gradient is infinite or not a number."""
