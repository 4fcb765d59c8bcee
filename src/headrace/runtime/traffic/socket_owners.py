"""Finds the connections of tasks: the sockets of their processes in /proc."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from headrace.linux.netlink import Connection
from headrace.runtime.traffic.connections import End

_SOCKET = "socket:["


class SocketOwners:
    """Finds connections of tasks, given by PID files; reads /proc only for new sockets."""

    def __init__(
        self, tasks: Mapping[str, Path], connections: Callable[[], list[Connection]]
    ) -> None:
        self._tasks, self._connections = tasks, connections
        self._pids: dict[int, str] = {}
        self._owners: dict[int, str | None] = {}
        self._known: dict[int, End] = {}

    def poll(self) -> tuple[list[End], list[End]]:
        """Return the connections that were opened and closed since the last poll."""
        pids = dict(self._read_pids())
        if pids != self._pids:
            # A socket without a task may belong to a new task.
            self._pids = pids
            self._owners = {inode: task for inode, task in self._owners.items() if task}
        seen = {each.inode: each for each in self._connections() if each.inode}
        if not seen.keys() <= self._owners.keys():
            found = dict(_sockets_of(self._pids))
            self._owners.update({inode: found.get(inode) for inode in seen})
        self._owners = {inode: self._owners[inode] for inode in seen}
        ends = {
            inode: End(task, each.local, each.peer)
            for inode, each in seen.items()
            if (task := self._owners[inode]) is not None
        }
        opened = [end for inode, end in ends.items() if self._known.get(inode) != end]
        closed = [end for inode, end in self._known.items() if ends.get(inode) != end]
        self._known = ends
        return opened, closed

    def _read_pids(self) -> Iterator[tuple[int, str]]:
        for task, path in self._tasks.items():
            with suppress(OSError, ValueError):
                yield int(path.read_bytes()), task


def _sockets_of(pids: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    for pid, task in pids.items():
        folder = f"/proc/{pid}/fd"
        # The process or the descriptor may be closed by now.
        with suppress(OSError):
            for descriptor in os.listdir(folder):
                with suppress(OSError):
                    target = os.readlink(f"{folder}/{descriptor}")
                    if target.startswith(_SOCKET):
                        yield int(target[len(_SOCKET) : -1]), task
