"""What goes wrong between a sampler and its trainer."""

from __future__ import annotations

from headrace.core.errors import HeadraceError


class FeedError(HeadraceError):
    """A sampler failed or is gone; the message names it, its machine and what it met."""

    exit_code = 6


class SamplerLostError(FeedError):
    """A sampler is gone or silent, or lost a store: another one in its place may do better."""
