"""Fetches checkpoints from the trainer into the run folder, so that they survive its machine."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from headrace.linux.disk import reserve
from headrace.runtime.callbacks.base import RunCallback
from headrace.runtime.controller.worker_group import PendingActorCalls
from headrace.training.checkpoint_files import Checkpoint, Sidecar, install, sidecar_of

MAX_ATTEMPTS = 3
"""Attempts per chunk; the trainer's machine may be temporarily overloaded."""

_POLL_INTERVAL_S, _CHUNK_TIMEOUT_S, _TELL_S = 0.1, 10.0, 8.0
"""Poll interval, chunk timeout, and interval of log lines."""

_RETRY_S = 10.0
"""Interval of attempts to store a checkpoint on a full disk."""

SPACE_S, _SPACE_POLL_S = 12.0, 3.0
"""Time for the user to free space for the last files of a run, and interval of attempts."""

_RESUME = "resume it: headrace run --resume RUN"

Read = Callable[[str, int], Any]
"""Requests a chunk of a file by name and offset; returns an object ref."""


class CheckpointFetcher:
    """Fetches the newest checkpoint; calls `then` with each complete one.

    Attributes:
        problem: Why the newest checkpoint cannot be stored here; empty if it can.
    """

    def __init__(
        self,
        folder: Path,
        calls: PendingActorCalls,
        read: Read,
        then: Callable[[Checkpoint], None],
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._folder, self._calls, self._read, self._then = folder, calls, read, then
        self._log = log
        self._newest: Sidecar | None = None
        self._made = -1
        self._waiting: Sidecar | None = None
        self._fetching: _Fetching | None = None
        self._unstored: Sidecar | None = None
        self._retry_s = 0.0
        self.problem = ""

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being fetched."""
        return self._fetching is not None

    @property
    def missed(self) -> int | None:
        """Iteration of the newest checkpoint if it was not fetched."""
        newest = self._newest
        return None if newest is None or self._made >= newest.iteration else newest.iteration

    def wait(self) -> bool:
        """Wait while chunks arrive; return False if they stop."""
        num_bytes, end_s, told_s = 0, 0.0, time.monotonic()
        while self._fetching is not None:
            now_s = time.monotonic()
            if now_s >= told_s + _TELL_S:
                told_s, size = now_s, self._fetching.sidecar.size
                self._log(f"{self._fetching.num_bytes:,} of {size:,} bytes of it were fetched")
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
            newest = -1 if self._newest is None else self._newest.iteration
            if sidecar is not None and sidecar.iteration > newest:
                self._newest = self._waiting = sidecar
        if self._unstored is not None and time.monotonic() >= self._retry_s:
            self.retry()
        self._begin()

    def _begin(self) -> None:
        if self._fetching is None and self._waiting is not None:
            sidecar, self._waiting = self._waiting, None
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._fetching = _Fetching(self._folder / ".arriving.partial", sidecar)
            except OSError as error:
                self._give_up(sidecar, error)
            else:
                self._next(self._fetching, MAX_ATTEMPTS)

    def retry(self) -> None:
        """Fetch the newest checkpoint again if it could not be stored."""
        if self._waiting is None:
            self._waiting, self._unstored = self._unstored, None
        self._begin()

    def fetch_again(self) -> None:
        """Fetch the newest checkpoint again if it did not arrive whole."""
        if self.missed is not None:
            self._log(f"fetching the checkpoint of iteration {self.missed} again")
            self._waiting = self._newest
            self._begin()

    def _give_up(self, sidecar: Sidecar, error: OSError) -> None:
        (self._folder / ".arriving.partial").unlink(missing_ok=True)
        self._fetching, self._unstored = None, sidecar
        self._retry_s = time.monotonic() + _RETRY_S
        why = error.strerror or type(error).__name__
        problem = f"the checkpoint of iteration {sidecar.iteration} cannot be stored: {why}"
        if problem != self.problem:
            self.problem = problem
            self._log(f"{problem} ({self._folder})")

    def _next(self, fetching: _Fetching, num_tries: int) -> None:
        def then(piece: bytes) -> None:
            if piece:
                try:
                    fetching.add(piece)
                except OSError as error:
                    self._give_up(fetching.sidecar, error)
                    return
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
        try:
            made = None
            if fetching.close():
                made = install(self._folder, fetching.sidecar, fetching.path)
        except OSError as error:
            self._give_up(fetching.sidecar, error)
            return
        if made is not None:
            self.problem, self._unstored = "", None
            self._made = max(self._made, made.sidecar.iteration)
            self._then(made)
        self._begin()


class _Fetching:
    """A checkpoint that is being fetched."""

    def __init__(self, path: Path, sidecar: Sidecar) -> None:
        self.path, self.sidecar, self.num_bytes = path, sidecar, 0
        path.unlink(missing_ok=True)
        # Before the trainer's machine sends it.
        reserve(path, sidecar.size)
        self._digest = hashlib.sha256()
        self._file: IO[bytes] = path.open("r+b", buffering=0)

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


def fetch_last(
    task: str,
    collector: CheckpointFetcher,
    *,
    names: Iterable[str],
    pieces: Callable[[str], Iterator[bytes]],
    callback: RunCallback,
    waits: bool,
    is_lost: bool = False,
) -> tuple[str, str]:
    """Fetch the newest checkpoint and the output files of a trainer at the end of a run.

    Args:
        task: The trainer.
        collector: Fetches its checkpoints.
        names: Names of the output files.
        pieces: Returns the chunks of an output file.
        callback: Stores the output files.
        waits: Whether to wait for space on a full disk, and to ask again for damaged checkpoints.
        is_lost: Whether the trainer is lost, so that nothing can be fetched.

    Returns:
        Why the checkpoint is not here, or why files cannot be stored here, and what to do; both
            empty if nothing is missing. Output files that cannot be read are not.
    """
    if is_lost:
        return _missed(collector, f"{task} is lost")
    if collector.is_busy:
        callback.log("waiting for the newest checkpoint to be fetched")
    left, end_s = list(names), time.monotonic() + (SPACE_S if waits else 0.0)
    may_repeat = waits
    while True:
        collector.retry()
        is_here = collector.wait()
        if is_here and may_repeat and not collector.problem:
            may_repeat = False
            collector.fetch_again()
            is_here = collector.wait()
        if not is_here:
            callback.log(f"{task} does not respond: its last files were not fetched")
            return _missed(collector, f"{task} does not respond")
        problem = collector.problem or _keep(left, pieces, callback)
        if not problem:
            return _missed(collector, "it did not arrive whole")
        if time.monotonic() >= end_s:
            return problem, f"free some space, then {_RESUME}"
        callback.log(f"{problem}; waiting for space for {SPACE_S:.0f} s")
        time.sleep(_SPACE_POLL_S)


def _missed(collector: CheckpointFetcher, why: str) -> tuple[str, str]:
    if collector.missed is None:
        return "", ""
    return f"the checkpoint of iteration {collector.missed} was not fetched: {why}", _RESUME


def _keep(names: list[str], pieces: Callable[[str], Iterator[bytes]], callback: RunCallback) -> str:
    """Store files and remove them from `names`; return why one cannot be stored."""
    while names:
        try:
            callback.kept(names[0], pieces(names[0]))
        except OSError as error:
            return f"{names[0]} cannot be stored: {error.strerror}"
        del names[0]
    return ""
