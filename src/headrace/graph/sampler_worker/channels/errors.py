"""Errors of the channels between samplers and trainers."""

from __future__ import annotations

from headrace.core.errors import HeadraceError


class PrefetchError(HeadraceError):
    """A sampler failed or is lost; the message names it, its machine and the cause."""

    exit_code = 6


class SamplerLostError(PrefetchError):
    """A sampler is lost or unresponsive, or lost a store; a replacement may succeed."""
