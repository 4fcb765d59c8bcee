"""Puts modules of the runtime into a world: their clock, threads, disk and collectives."""

from __future__ import annotations

import concurrent.futures._base
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any

import headrace.graph.store.client
import headrace.graph.store.embedding_service
import headrace.graph.store.write_ahead_log
import headrace.linux.atomic_write
import headrace.linux.disk
import headrace.rpc.reconnect
import headrace.rpc.service
import headrace.rpc.sync_rounds
import headrace.runtime.callbacks.drift_monitor
import headrace.runtime.controller.checkpoint_fetch
import headrace.runtime.controller.run
import headrace.runtime.trainer.checkpointer
import headrace.runtime.trainer.stop_consensus
import headrace.runtime.trainer.stop_signal
import headrace.training.checkpoint_files
from tests.simulation.disks import Disks, VirtualOs
from tests.simulation.training import Collectives
from tests.simulation.virtual_modules import VirtualThreading, VirtualTime
from tests.simulation.world import World

_THREADS = (
    headrace.runtime.trainer.checkpointer,
    headrace.runtime.trainer.stop_signal,
    headrace.runtime.callbacks.drift_monitor,
    headrace.rpc.reconnect,
    headrace.rpc.service,
    headrace.rpc.sync_rounds,
    headrace.graph.store.embedding_service,
    concurrent.futures._base,
)
_FILES = (
    headrace.linux.atomic_write,
    headrace.linux.disk,
    headrace.runtime.controller.checkpoint_fetch,
    headrace.training.checkpoint_files,
)


class VirtualSignals:
    """Stands for module `signal`: handlers of the current process."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        import signal

        return getattr(signal, name)

    def signal(self, number: int, handler: Any) -> Any:
        """Set a handler."""
        assert self._world.current is not None
        handlers = self._world.current.process.handlers
        before = handlers.pop(number, None)
        if handler is not None:
            handlers[number] = handler
        return before


@lru_cache(maxsize=1)
def _clocks() -> tuple[ModuleType, ...]:
    """Modules of headrace that read a clock."""
    return tuple(
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith("headrace.") and vars(module).get("time") is time
    )


@contextmanager
def inside(world: World, disks: Disks, send: Any) -> Iterator[None]:
    """Put the runtime into a world; `send` receives the messages of trainers."""
    clock, threads, files = VirtualTime(world), VirtualThreading(world), VirtualOs(disks)
    collectives, checkpointer = Collectives(world), headrace.runtime.trainer.checkpointer
    changes: list[tuple[ModuleType, str, Any]] = [
        *((module, "time", clock) for module in _clocks()),
        *((module, "threading", threads) for module in _THREADS),
        *((module, "os", files) for module in _FILES),
        (headrace.runtime.trainer.stop_signal, "signal", VirtualSignals(world)),
        (headrace.runtime.trainer.stop_consensus, "largest", collectives.largest),
        (checkpointer, "at_first_trainer", collectives.at_first_trainer),
        (checkpointer, "join_group", collectives.join_group),
        (checkpointer, "send", send),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
