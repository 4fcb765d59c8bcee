"""Find and kill processes of this machine."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.testbed.layout import Process


@dataclass(frozen=True)
class Seen:
    """A running process: identity, parent's process ID and short command name."""

    process: Process
    parent: int
    command: str


def read_process(pid: int) -> Seen | None:
    """The process with that ID, if it is running."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name is in parentheses and may contain parentheses.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if fields[0] in "ZX":
        return None
    process = Process(pid=pid, start_ticks=int(fields[19]))
    return Seen(process, int(fields[1]), head.partition("(")[2])


def list_processes() -> list[Seen]:
    """All running processes."""
    seen = (read_process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [each for each in seen if each is not None]


def is_alive(process: Process | None) -> bool:
    """Whether exactly that process is still running."""
    if process is None:
        return False
    seen = read_process(process.pid)
    return seen is not None and seen.process == process


def boot_id() -> str:
    """Boot ID of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def namespace_of(pid: int, kind: str) -> int | None:
    """Inode of a process' namespace; None if it has exited."""
    try:
        return os.stat(f"/proc/{pid}/ns/{kind}").st_ino
    except OSError:
        return None


def living_in(namespaces: Iterable[int], kind: str) -> Iterator[tuple[int, Seen]]:
    """All processes in some namespaces, each with its namespace's inode."""
    wanted = set(namespaces)
    for seen in list_processes():
        number = namespace_of(seen.process.pid, kind)
        if number in wanted and number is not None:
            yield number, seen


def end(processes: Iterable[Process], deadline_s: float) -> list[Process]:
    """Kill processes and wait; returns those still running after `deadline_s`.

    A process ID that now belongs to another process is left alone.
    """
    waiting: dict[int, Process] = {}
    try:
        for process in processes:
            with suppress(ProcessLookupError):
                handle = os.pidfd_open(process.pid)
                waiting[handle] = process
                # Checked after opening the handle, so that the handle refers to this process.
                if is_alive(process):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                else:
                    del waiting[handle]
                    os.close(handle)
        return _wait(waiting, time.monotonic() + deadline_s)
    finally:
        for handle in waiting:
            os.close(handle)


def _wait(waiting: dict[int, Process], end_s: float) -> list[Process]:
    poll = select.poll()
    left = dict(waiting)
    for handle in left:
        poll.register(handle, select.POLLIN)
    while left and (rest_s := end_s - time.monotonic()) > 0:
        for handle, _ in poll.poll(rest_s * 1000):
            poll.unregister(handle)
            process = left.pop(handle)
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
    return list(left.values())
