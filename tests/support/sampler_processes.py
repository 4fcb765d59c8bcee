"""Sampler processes that a test or benchmark starts, and a prefetcher of their batches."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.sampler_worker.channels.shm import HEARTBEAT_TIMEOUT_S, ShmReceiver
from headrace.graph.sampler_worker.config import SamplerConfig
from headrace.graph.sampler_worker.prefetcher import Prefetcher
from headrace.graph.sampler_worker.sub_batch_builder import Clock
from headrace.runtime.cluster.local_actors import LocalActors
from headrace.runtime.protocol.sampler_requests import RequestServer
from headrace.runtime.workers.sampler import SamplerActor

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


class StartedPrefetcher(Prefetcher):
    """A prefetcher whose samplers end with it."""

    def __init__(
        self, configs: Sequence[SamplerConfig], processes: Sequence[SamplerProcess], clock: Clock
    ) -> None:
        self.processes = tuple(processes)
        first = configs[0]
        super().__init__(
            [process.receiver for process in processes],
            first.batches_per_epoch,
            clock,
            first.num_epochs,
            first.first_batch,
            [len(config.shards) for config in configs],
        )

    def close(self) -> None:
        super().close()
        for process in self.processes:
            process.close()


def start_prefetcher(
    configs: Sequence[SamplerConfig],
    seeds: Sequence[np.ndarray],
    clock: Clock,
    log: IO[bytes] | None = None,
) -> StartedPrefetcher:
    """Start samplers on this machine with their seeds (original ids), and a prefetcher.

    Raises:
        SpecError: The samplers are configured for different batches.
    """
    first = configs[0]
    for config in configs:
        if _batches(config) != _batches(first):
            raise SpecError(
                f"{config.name} and {first.name} are configured for different batches",
                "use the same number of batches and epochs, and the same first ones",
            )
    processes: list[SamplerProcess] = []
    try:
        for config, own in zip(configs, seeds, strict=True):
            processes.append(SamplerProcess(config, own, log))
    except BaseException:
        for process in processes:
            process.close()
        raise
    return StartedPrefetcher(configs, processes, clock)


def _batches(config: SamplerConfig) -> tuple[int | None, ...]:
    begin = (config.first_epoch, config.first_batch)
    return (config.batches_per_epoch, config.num_epochs, *begin)


@contextmanager
def sampler_actors(folder: Path, graph: Path, num: int) -> Iterator[Path]:
    """Socket at which a trainer of this machine requests samplers of a graph without stores."""
    actors = [SamplerActor(f"sampler0.{i}", "m1", LocalActors("m0")) for i in range(num)]

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        assert request["kind"] == "start_samplers"
        for actor, config, seeds in zip(actors, request["configs"], request["seeds"], strict=True):
            actor.prepare({"graph": str(graph)}, b"", {})
            actor.begin(config, Path(seeds).read_bytes(), None, "m1")
        while None in (places := [actor.place() for actor in actors]):
            time.sleep(0.01)
        return {"places": places}

    server = RequestServer(folder / "requests", answer)
    try:
        yield folder / "requests"
    finally:
        server.close()
        for actor in actors:
            actor.close()


def memory_file(data: bytes) -> int:
    """Descriptor of a memory file with these bytes, to pass to a new process."""
    fd = os.memfd_create("headrace")
    with open(os.dup(fd), "wb") as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a channel: the trainer's, and the sampler's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
