"""Puts modules of the runtime into a world: their clock, threads, disk and collectives."""

from __future__ import annotations

import concurrent.futures._base
import sys
import time
from collections.abc import Callable, Iterator
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
from headrace.rpc.config import TaskAddress
from tests.simulation.cluster import Cluster
from tests.simulation.disks import VirtualOs
from tests.simulation.drift import plan_again
from tests.simulation.groups import Collectives
from tests.simulation.stores import Link
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


_RANDOM = ("random_state", "restore_random_state", "begin_random")
"""What uses the global random numbers of the current process."""


def _drawing(world: World, name: str) -> Callable[..., Any]:
    call = getattr(headrace.runtime.trainer.checkpointer, name)

    def draw(*arguments: Any) -> Any:
        assert world.current is not None
        world.take_randoms(world.current.process)
        return call(*arguments)

    return draw


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
def inside(cluster: Cluster, send: Any) -> Iterator[None]:
    """Put the runtime into a world; `send` receives the messages of trainers."""
    world, files = cluster.world, VirtualOs(cluster.disks)
    clock, threads = VirtualTime(world), VirtualThreading(world)

    def connect(address: TaskAddress, credentials: Any, timeout_s: float) -> Link:
        return Link(cluster, address, timeout_s)

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
        (headrace.rpc.reconnect, "RpcChannel", connect),
        (headrace.runtime.callbacks.drift_monitor, "replan_measured", plan_again),
        *((checkpointer, name, _drawing(world, name)) for name in _RANDOM),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
