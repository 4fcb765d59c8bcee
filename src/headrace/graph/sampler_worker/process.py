"""Sampler processes started by a trainer on the same machine."""

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
from headrace.graph.sampler_worker.channels.shm import HEARTBEAT_TIMEOUT_S, ShmReceiver, socket_pair
from headrace.graph.sampler_worker.config import SamplerConfig

_EXIT_TIMEOUT_S = 5.0

# A sampler imports its packages before its first message: 2 s, 15 s with 17 processes on one core.
_START_TIMEOUT_S = 60.0


class SamplerProcess:
    """A sampler process, which never outlives this process.

    Its config and seeds are passed in memory files, so that nothing is left on disk. `quiet_s` is
    its heartbeat timeout once it has started; without `log` it writes to this process's stderr.
    """

    def __init__(
        self,
        config: SamplerConfig,
        seeds: np.ndarray,
        log: IO[bytes] | None = None,
        quiet_s: float = HEARTBEAT_TIMEOUT_S,
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
        starting_s = max(quiet_s, _START_TIMEOUT_S)
        self.receiver = ShmReceiver(ours, self.name, quiet_s, self._exit_reason, starting_s)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def close(self) -> None:
        """Stop the process."""
        self.receiver.close()
        try:
            self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _exit_reason(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            # The connection closes before the memory is freed, which takes time.
            self._process.wait(_EXIT_TIMEOUT_S)
        code = self._process.returncode
        if code is None:
            return "it closed the connection"
        if code >= 0:
            return f"it exited with code {code}"
        return f"it was ended by {signal.Signals(-code).name}"
