"""Stores that outlive runs."""

from __future__ import annotations

from headrace.runtime.run_dir.attached_stores import serving_state
from headrace.runtime.run_dir.store_set import StoreSet, StoreSetConfig, StoreSetState
from headrace.runtime.stores.commands import (
    StoreSetView,
    local_stores,
    planned_stores,
    start,
    stop,
    view,
)

__all__ = [
    "StoreSet",
    "StoreSetConfig",
    "StoreSetState",
    "StoreSetView",
    "local_stores",
    "planned_stores",
    "serving_state",
    "start",
    "stop",
    "view",
]
