"""Allocated and freed tensor memory of a step, in order."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

from torch import Tensor, UntypedStorage

Event = tuple[int, int]
"""Number of a storage, and its bytes; negative if it is freed."""


class Allocations:
    """Log of storages: when each was allocated and freed.

    Args:
        round_up: Bytes that the allocator takes for a request.

    Attributes:
        live_bytes: Bytes of all storages that exist now.
        peak_bytes: Largest `live_bytes` since `reset_peak`.
    """

    def __init__(self, round_up: Callable[[int], int] = int) -> None:
        self._round_up = round_up
        self._refs: dict[int, tuple[weakref.ref[UntypedStorage], int]] = {}
        self._events: list[Event] = []
        self._step_at = 0
        self._numbers: dict[int, int] = {}
        self._num_seen = 0
        self._pending: tuple[int, int, frozenset[int]] | None = None
        self._peak_at = 0
        self.live_bytes = 0
        self.peak_bytes = 0

    def add(
        self, tensor: Tensor, num_bytes: int | None = None, reuses: Iterable[Tensor] = ()
    ) -> bool:
        """Record the tensor's storage if it is new; returns whether it is.

        Args:
            tensor: The tensor.
            num_bytes: Bytes of the storage, if other than its size.
            reuses: Tensors one of whose storages is used instead, if it is the next to be freed.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._refs:
            return False
        self._flush()
        size = self._round_up(storage.nbytes() if num_bytes is None else num_bytes)
        self._num_seen += 1
        self._numbers[key] = self._num_seen
        self._refs[key] = (weakref.ref(storage, lambda _: self._free(key)), size)
        others = frozenset(other.untyped_storage()._cdata for other in reuses)
        if others:
            self._pending = (self._num_seen, size, others)
        else:
            self._log(self._num_seen, size)
        return True

    def peak_with(self, num_bytes: int) -> None:
        """Record memory that a kernel needs while it runs, beside its outputs."""
        if num_bytes:
            self._flush()
            self._num_seen += 1
            size = self._round_up(num_bytes)
            self._log(self._num_seen, size)
            self._log(self._num_seen, -size)

    def reset_peak(self) -> None:
        """Start a new step."""
        self._flush()
        self._step_at = self._peak_at = len(self._events)
        self.peak_bytes = self.live_bytes

    def split(self) -> tuple[list[Event], list[Event]]:
        """Storages that exist when the step starts, and the events of the step."""
        live: dict[int, int] = {}
        for number, size in self._events[: self._step_at]:
            live[number] = live.get(number, 0) + size
        return [event for event in live.items() if event[1]], self._events[self._step_at :]

    def number(self, tensor: Tensor) -> int | None:
        """Number of the tensor's storage in the log."""
        return self._numbers.get(tensor.untyped_storage()._cdata)

    def at_peak(self, kinds: Iterable[tuple[str, set[int]]]) -> dict[str, int]:
        """Bytes at the peak by kind of storage; those of no kind are `activations`."""
        self._flush()
        live: dict[int, int] = {}
        for number, size in self._events[: self._peak_at]:
            live[number] = live.get(number, 0) + size
        found = {}
        for kind, numbers in kinds:
            found[kind] = sum(live.pop(number, 0) for number in numbers)
        return {**found, "activations": sum(live.values())}

    def _log(self, number: int, size: int) -> None:
        self._events.append((number, size))
        self.live_bytes += size
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self._peak_at = self.live_bytes, len(self._events)

    def _free(self, key: int) -> None:
        _, size = self._refs.pop(key)
        number = self._numbers.pop(key)
        if self._pending is not None and key in self._pending[2] and size == self._pending[1]:
            # The new storage is the freed one.
            new, self._pending = self._pending[0], None
            self._log(number, -size)
            self._log(new, size)
            return
        self._flush()
        self._log(number, -size)

    def _flush(self) -> None:
        """Log the pending storage, which is a new one."""
        if self._pending is not None:
            (number, size, _), self._pending = self._pending, None
            self._log(number, size)
