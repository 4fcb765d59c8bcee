"""Fetches checkpoints from the trainer into the run folder, so that they survive its machine."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from headrace.runtime.controller.worker_group import PendingActorCalls
from headrace.training.checkpoint_files import Checkpoint, Sidecar, install, sidecar_of

MAX_ATTEMPTS = 3
"""Attempts per chunk; the trainer's machine may be temporarily overloaded."""

_POLL_INTERVAL_S, _CHUNK_TIMEOUT_S = 0.1, 10.0
"""Poll interval and chunk timeout."""

Read = Callable[[str, int], Any]
"""Requests a chunk of a file by name and offset; returns an object ref."""


class CheckpointFetcher:
    """Fetches the newest checkpoint; calls `then` with each complete one."""

    def __init__(
        self, folder: Path, calls: PendingActorCalls, read: Read, then: Callable[[Checkpoint], None]
    ) -> None:
        self._folder, self._calls, self._read, self._then = folder, calls, read, then
        self._newest = -1
        self._waiting: Sidecar | None = None
        self._fetching: _Fetching | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being fetched."""
        return self._fetching is not None

    def wait(self) -> bool:
        """Wait while chunks arrive; return False if they stop."""
        num_bytes, end_s = 0, 0.0
        while self._fetching is not None:
            now_s = time.monotonic()
            if self._fetching.num_bytes != num_bytes or not end_s:
                num_bytes, end_s = self._fetching.num_bytes, now_s + _CHUNK_TIMEOUT_S
            if now_s >= end_s:
                return False
            self._calls.collect(_POLL_INTERVAL_S)
        return True

    def update(self, sidecars: Mapping[str, str]) -> None:
        """Update the trainer's checkpoints, given the texts of their sidecar files by name."""
        for text in sidecars.values():
            sidecar = sidecar_of(text.encode())
            if sidecar is not None and sidecar.iteration > self._newest:
                self._newest, self._waiting = sidecar.iteration, sidecar
        self._begin()

    def _begin(self) -> None:
        if self._fetching is None and self._waiting is not None:
            sidecar, self._waiting = self._waiting, None
            self._folder.mkdir(parents=True, exist_ok=True)
            self._fetching = _Fetching(self._folder / ".arriving.partial", sidecar)
            self._next(self._fetching, MAX_ATTEMPTS)

    def _next(self, fetching: _Fetching, num_tries: int) -> None:
        def then(piece: bytes) -> None:
            if piece:
                fetching.add(piece)
                self._next(fetching, MAX_ATTEMPTS)
            else:
                self._end(fetching)

        def failed(error: Exception) -> None:
            if num_tries > 1:
                self._next(fetching, num_tries - 1)
            else:
                self._end(fetching)

        if fetching.is_full:
            self._end(fetching)
        else:
            name = f"checkpoints/{fetching.sidecar.name}.pt"
            self._calls.add(self._read(name, fetching.num_bytes), then, failed)

    def _end(self, fetching: _Fetching) -> None:
        self._fetching = None
        if fetching.close():
            self._then(install(self._folder, fetching.sidecar, fetching.path))
        self._begin()


class _Fetching:
    """A checkpoint that is being fetched."""

    def __init__(self, path: Path, sidecar: Sidecar) -> None:
        self.path, self.sidecar, self.num_bytes = path, sidecar, 0
        self._digest = hashlib.sha256()
        self._file: IO[bytes] = path.open("wb")

    @property
    def is_full(self) -> bool:
        return self.num_bytes >= self.sidecar.size

    def add(self, piece: bytes) -> None:
        self._file.write(piece)
        self._digest.update(piece)
        self.num_bytes += len(piece)

    def close(self) -> bool:
        """Close the file; return whether it is complete, else delete it."""
        found = (self.num_bytes, self._digest.hexdigest())
        is_whole = found == (self.sidecar.size, self.sidecar.sha256)
        with self._file as file:
            if is_whole:
                file.flush()
                os.fsync(file.fileno())
        if not is_whole:
            self.path.unlink(missing_ok=True)
        return is_whole
