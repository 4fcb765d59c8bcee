"""Base class of task actors."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from headrace.linux.disk import has_space
from headrace.linux.memory import memory_bytes
from headrace.linux.network import interface_of, nic_bytes, rss_bytes, write_private
from headrace.linux.process import Activity, is_stopped, session_activity
from headrace.prefork.client import ForkLease
from headrace.prefork.identity import namespace, own_version
from headrace.runtime.cluster.actor_system import ActorSystem
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.run_dir.temp_dirs import PREFIX, remove_forgotten
from headrace.runtime.workers.task_process import GRACE_S, URGENT_GRACE_S, TaskProcess

READ_BYTES = 1 << 20
"""Bytes per read of a file."""


class TaskActor:
    """Manages one task on its machine. Methods return at once."""

    preload = "graph"
    """Fork server that starts the process; see `prefork.server`."""

    def __init__(self, task: str, machine: str, system: ActorSystem) -> None:
        self.task, self.machine, self._system = task, machine, system
        self._process: TaskProcess | None = None
        above = Path(tempfile.gettempdir())
        remove_forgotten(above)
        prefix = f"{PREFIX}{namespace()}.{os.getpid()}-{task}-"
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=above))
        self.log_path = self.folder / f"{task}.log"
        self.trace_path = self.folder / f"trace-{task}.jsonl"
        self.address = ""
        self._interface: str | None = None
        self._lease = ForkLease(self.preload) if system.has_fork_server else None

    def register(self) -> dict[str, Any]:
        """Node, address and version of this actor."""
        location = self._system.location()
        self.address = location.address
        self._interface = interface_of(self.address)
        return {
            "task": self.task,
            "version": own_version(),
            "python": sys.version_info[:2],
            "node_id": location.node_id,
            "address": self.address,
            "interface": self._interface,
            "pid": os.getpid(),
            "gpus": self._system.gpu_ids(),
            "folder": str(self.folder),
        }

    def state(self) -> ActorState:
        """State of the process; subclasses add fields."""
        process = self._process
        code = None if process is None else process.code
        sizes = _size(self.log_path), _size(self.trace_path)
        if process is None:
            return ActorState(None, None, *sizes)
        if code is None:
            pid = process.pid
            memory = rss_bytes(pid), memory_bytes(pid=pid)
            return ActorState(pid, None, *sizes, *memory, is_stopped=is_stopped(pid))
        last_error = process.last_error_line() if code else ""
        if code and not has_space(self.folder):
            # Nor could it write its own last words.
            last_error = f"error: no space left on the disk of {self.folder.parent}"
        return ActorState(
            None,
            code,
            *sizes,
            how=process.how,
            last_error=last_error,
            ended_ago_s=process.ended_ago_s,
        )

    def nic(self) -> tuple[int, int] | None:
        """Bytes received and sent by the machine's NIC."""
        return None if self._interface is None else nic_bytes(self._interface)

    def log(self, offset: int) -> bytes:
        """Output of the process from an offset on."""
        return _read(self.log_path, offset)

    def trace(self, offset: int) -> bytes:
        """Trace of the process from an offset on."""
        return _read(self.trace_path, offset)

    def clock(self) -> float:
        """This machine's clock for traces."""
        return time.monotonic()

    def stop(self, is_urgent: bool) -> None:
        """Request the exit, which `state` reports; urgent if a task failed that others block on."""
        if self._process is not None:
            self._process.stop(URGENT_GRACE_S if is_urgent else GRACE_S)

    def activity(self) -> Activity:
        """What the process and those it started have done so far."""
        process = self._process
        return Activity() if process is None else session_activity(process.pid)

    def kill_hung(self, why: str, only_stopped: bool) -> None:
        """Kill the process, which makes no progress; `state` reports `why`."""
        process = self._process
        if process is not None and (not only_stopped or is_stopped(process.pid)):
            process.kill(why)

    def close(self) -> None:
        """Stop the process and remove the folder."""
        try:
            if self._process is not None:
                self._process.end()
            if self._lease is not None:
                self._lease.close()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _write_keys(self, credentials: bytes) -> Path:
        path = self.folder / "keys"
        if not path.exists():
            write_private(path, credentials)
        return path


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(READ_BYTES)
    except OSError:
        return b""
