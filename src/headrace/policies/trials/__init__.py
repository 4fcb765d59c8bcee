"""Which trials of a sweep run next, and which stop early."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.policies.trials._base import Queue, Room, TrialLoad, TrialOrder, fits_alone
from headrace.policies.trials.groups import base, bmc, lmcf
from headrace.policies.trials.shortest import shortest

__all__ = ["TRIAL_ORDERS", "Queue", "Room", "TrialLoad", "TrialOrder", "fits_alone"]

TRIAL_ORDERS: Mapping[str, TrialOrder] = {
    "shortest": shortest,
    "base": base,
    "lmcf": lmcf,
    "bmc": bmc,
}
"""Orders by name; all but `shortest` are the task groups of CoGNN (section IV-D)."""
