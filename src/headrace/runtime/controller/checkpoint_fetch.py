"""Brings checkpoints from the trainer that writes them into the run's folder, while it runs.

A machine may be lost with all that is on it, so what is needed to go on must not stay there alone.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from headrace.runtime.controller.worker_group import PendingActorCalls
from headrace.training.checkpoint_files import Checkpoint, Sidecar, install, sidecar_of

ASK_AGAIN = 3
"""How often a piece is asked for; a trainer's machine may be busy for a while."""

_LOOK_S, _PIECE_S = 0.1, 10.0
"""Until the next piece arrives."""

Ask = Callable[[str, int], Any]
"""Asks for a piece of a file by name and offset; what a remote call returns."""


class CheckpointFetcher:
    """Fetches the newest checkpoint, one at a time; a newer one waits until that is done.

    Args:
        folder: Where checkpoints go.
        calls: Carry the pieces.
        ask: Asks the trainer's shell for them.
        tell: Told of every checkpoint that is there, with all of its bytes.
    """

    def __init__(
        self, folder: Path, calls: PendingActorCalls, ask: Ask, tell: Callable[[Checkpoint], None]
    ) -> None:
        self._folder, self._calls, self._ask, self._tell = folder, calls, ask, tell
        self._newest = -1
        self._waiting: Sidecar | None = None
        self._fetching: _Fetching | None = None

    @property
    def is_busy(self) -> bool:
        """Whether one is on its way."""
        return self._fetching is not None

    def wait(self) -> bool:
        """Wait as long as pieces arrive; whether none is on its way any more."""
        num_bytes, end_s = 0, 0.0
        while self._fetching is not None:
            now_s = time.monotonic()
            if self._fetching.num_bytes != num_bytes or not end_s:
                num_bytes, end_s = self._fetching.num_bytes, now_s + _PIECE_S
            if now_s >= end_s:
                return False
            self._calls.collect(_LOOK_S)
        return True

    def see(self, sidecars: Mapping[str, str]) -> None:
        """Take note of what the trainer has.

        Args:
            sidecars: Texts of the small files beside checkpoints, by name.
        """
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
            self._next(self._fetching, ASK_AGAIN)

    def _next(self, fetching: _Fetching, num_tries: int) -> None:
        def then(piece: bytes) -> None:
            if piece:
                fetching.add(piece)
                self._next(fetching, ASK_AGAIN)
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
            self._calls.ask(self._ask(name, fetching.num_bytes), then, failed)

    def _end(self, fetching: _Fetching) -> None:
        self._fetching = None
        if fetching.close():
            self._tell(install(self._folder, fetching.sidecar, fetching.path))
        self._begin()


class _Fetching:
    """A checkpoint on its way."""

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
        """Whether it is whole; if not, nothing of it stays."""
        found = (self.num_bytes, self._digest.hexdigest())
        is_whole = found == (self.sidecar.size, self.sidecar.sha256)
        with self._file as file:
            if is_whole:
                file.flush()
                os.fsync(file.fileno())
        if not is_whole:
            self.path.unlink(missing_ok=True)
        return is_whole
