"""Sampler processes, as a trainer on the same machine starts them."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import IO

import numpy as np

from headrace.graph.sampler_worker.channels.shared_memory import memory_file
from headrace.graph.sampler_worker.channels.shm import QUIET_S, ShmReceiver, socket_pair
from headrace.graph.sampler_worker.config import SamplerConfig

_PATIENCE_S = 5.0

# A sampler loads its packages before it says anything: 2 s, but 15 with 17 processes on one core.
_STARTING_S = 60.0


class SamplerProcess:
    """A sampler that lives as long as this process wants, and never longer than it.

    What it is told lies in memory only, so that nothing is left on disk either.

    Args:
        config: What to sample; its `seeds` are replaced.
        seeds: Original ids.
        log: Where its messages go; none for where this process's errors go.
        quiet_s: When a sampler that says nothing is dead, once it has begun.

    Attributes:
        receiver: Takes its parts.
    """

    def __init__(
        self,
        config: SamplerConfig,
        seeds: np.ndarray,
        log: IO[bytes] | None = None,
        quiet_s: float = QUIET_S,
    ) -> None:
        self.name = config.name
        ours, theirs = socket_pair()
        array = io.BytesIO()
        np.save(array, np.asarray(seeds, np.int64))
        seeds_fd = memory_file(array.getvalue())
        config = config.model_copy(update={"seeds": f"/proc/self/fd/{seeds_fd}"})
        config_fd = memory_file(config.model_dump_json(warnings=False).encode())
        command = [sys.executable, "-m", "headrace.graph.sampler_worker"]
        try:
            self._process = subprocess.Popen(
                [*command, "--config", f"/proc/self/fd/{config_fd}"],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                pass_fds=(seeds_fd, config_fd),
            )
        finally:
            theirs.close()
            os.close(seeds_fd)
            os.close(config_fd)
        starting_s = max(quiet_s, _STARTING_S)
        self.receiver = ShmReceiver(ours, self.name, quiet_s, self._why_gone, starting_s)

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it."""
        self.receiver.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _why_gone(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            # Its connection is closed before its memory is, which may be much.
            self._process.wait(_PATIENCE_S)
        code = self._process.returncode
        if code is None:
            return "it closed the connection"
        if code >= 0:
            return f"it ended with code {code}"
        return f"it was ended by {signal.Signals(-code).name}"
