"""A fork server: imports the modules of tasks once per machine, and forks the tasks.

Importing torch and PyG takes 5.6 s of CPU time in every trainer; importing pyarrow, numba and the
graph package takes 0.9 s in every store and sampler. A fork takes milliseconds.

`python -m headrace.prefork.server PRELOAD SOCKET KEEP_S PADDING` listens on a Unix socket. A client
is admitted if its identity (version, interpreter, relevant environment variables) equals the
server's. Each connection carries at most one task. The task is killed when its connection closes,
that is when its client ends; all tasks end with the server.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from headrace.prefork.identity import identity_of
from headrace.prefork.task import become, set_command_line

PRELOADS: Mapping[str, tuple[str, ...]] = {
    "graph": (
        "headrace.graph.store.__main__",
        "headrace.graph.store.server",
        "headrace.graph.sampler_worker.__main__",
        "headrace.graph.sampler_worker.channels.rpc",
    ),
    "train": (
        "torch",
        "torch_geometric.nn",
        "torch_geometric.loader",
        "headrace.runtime.trainer.__main__",
        "headrace.runtime.trainer.context",
        "headrace.runtime.trainer.loaders",
        "headrace.graph.loader.pyg_sampler",
        "headrace.graph.loader.pyg_stores",
        "headrace.training.parameter_server.__main__",
        "headrace.training.parameter_server.server",
    ),
}
"""Modules a fork server imports, by kind of task; modules that are not installed are skipped."""

PADDING = "-" * 4000
"""Reserves space for the command line of a task, which overwrites the server's."""

_LENGTH = struct.Struct("!I")
_MAX_REQUEST_BYTES = 1 << 24
_REQUEST_TIMEOUT_S = 20.0
_FIRST_CLIENT_S = 60.0
_RETRY_ACCEPT_S = 0.05
_NUM_FDS = 2  # standard input, and output with errors


@dataclass(eq=False)
class Client:
    """A connection and its task; `pidfd` becomes readable when the task ends."""

    connection: socket.socket
    pid: int = 0
    pidfd: int = -1
    is_gone: bool = False


class ForkServer:
    """Admits clients with an identity and forks their tasks; idle servers end after `keep_s`."""

    def __init__(
        self, listener: socket.socket, identity: Mapping[str, Any], keep_s: float | None
    ) -> None:
        self._listener, self._identity, self._keep_s = listener, identity, keep_s
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, None)
        self._clients: set[Client] = set()
        self._was_used = False

    def serve(self) -> dict[str, Any] | None:
        """Serve until no clients are left; in a forked task, return its request."""
        idle_timeout_s = None if self._keep_s is None else max(self._keep_s, _FIRST_CLIENT_S)
        while True:
            ready = self._selector.select(None if self._clients else idle_timeout_s)
            if not ready and not self._clients:
                return None
            if self._was_used:
                idle_timeout_s = self._keep_s
            for key, _ in ready:
                if key.data is None:
                    self._accept()
                    continue
                client: Client = key.data
                if key.fd == client.pidfd:
                    self._report_end(client)
                elif not client.pid and not client.is_gone:
                    request = self._receive(client)
                    if request is not None:
                        return request
                else:
                    # Clients send one request: readable again means that the connection closed.
                    self._drop(client)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # Without descriptors, tasks go on, and clients wait until one of them ends.
            time.sleep(_RETRY_ACCEPT_S)
            return
        connection.settimeout(_REQUEST_TIMEOUT_S)
        client = Client(connection)
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _receive(self, client: Client) -> dict[str, Any] | None:
        """Read a request and fork; returns the request in the fork, None in the server."""
        fds: list[int] = []
        try:
            request = _read_request(client.connection, fds)
            if request is None:
                self._drop(client)
                return None
            if request["identity"] != self._identity:
                send(client.connection, {"refused": "it would import something else"})
                self._drop(client)
                return None
            if "command" in request and len(fds) != _NUM_FDS:
                self._drop(client)
                return None
            self._was_used = True
            if "command" not in request:
                # A lease, which keeps the server alive.
                send(client.connection, {"pid": os.getpid()})
                return None
            pid = os.fork()
            if pid == 0:
                self._close_all()
                _move(fds)
                return request
            client.pid = pid
            client.pidfd = os.pidfd_open(pid)
            self._selector.register(client.pidfd, selectors.EVENT_READ, client)
            send(client.connection, {"pid": pid})
        except (OSError, ValueError, KeyError, RecursionError, struct.error):
            self._drop(client)
        finally:
            for fd in fds:
                os.close(fd)
        return None

    def _close_all(self) -> None:
        """Close the server's descriptors, in a fork."""
        for client in self._clients:
            client.connection.close()
            if client.pidfd >= 0:
                os.close(client.pidfd)
        self._selector.close()
        self._listener.close()

    def _report_end(self, client: Client) -> None:
        """Send the exit code of a task; its process ID stays reserved until the client closes."""
        found = os.waitid(os.P_PIDFD, client.pidfd, os.WEXITED | os.WNOWAIT)
        assert found is not None
        killed = found.si_code != os.CLD_EXITED
        self._selector.unregister(client.pidfd)
        if client.is_gone:
            self._reap(client)
            return
        with suppress(OSError):
            send(client.connection, {"code": -found.si_status if killed else found.si_status})

    def _drop(self, client: Client) -> None:
        """Remove a client and kill its task."""
        client.is_gone = True
        self._selector.unregister(client.connection)
        client.connection.close()
        if not client.pid:
            self._clients.discard(client)
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(client.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(client.pid, signal.SIGKILL)  # if it has no process group yet
        if client.pidfd < 0 or client.pidfd not in self._selector.get_map():
            self._reap(client)

    def _reap(self, client: Client) -> None:
        os.waitpid(client.pid, 0)
        if client.pidfd >= 0:
            os.close(client.pidfd)
        self._clients.discard(client)


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A name of a socket's path within the kernel's limit of 107 bytes."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def send(connection: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Send a message and file descriptors."""
    data = json.dumps(message).encode()
    head = _LENGTH.pack(len(data))
    if fds:
        socket.send_fds(connection, [head], list(fds))
    else:
        connection.sendall(head)
    connection.sendall(data)


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """Receive a message; None at the end of the connection."""
    head = _read(connection, _LENGTH.size)
    return None if head is None else _body(connection, head)


def _read_request(connection: socket.socket, fds: list[int]) -> dict[str, Any] | None:
    head, received, _, _ = socket.recv_fds(connection, _LENGTH.size, _NUM_FDS)
    fds += received
    return None if len(head) < _LENGTH.size else _body(connection, head)


def _body(connection: socket.socket, head: bytes) -> dict[str, Any] | None:
    (length,) = _LENGTH.unpack(head)
    if length > _MAX_REQUEST_BYTES:
        raise ValueError(f"message too long: {length} bytes")
    data = _read(connection, length)
    if data is None:
        return None
    message = json.loads(data)
    if not isinstance(message, dict):
        raise ValueError("a message must be a JSON object")
    return message


def _read(connection: socket.socket, length: int) -> bytes | None:
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            return None
        data += more
    return data


def _move(fds: Sequence[int]) -> None:
    """Make received descriptors standard input, output and error."""
    os.dup2(fds[0], 0)
    os.dup2(fds[1], 1)
    os.dup2(fds[1], 2)


@dataclass(frozen=True)
class Place:
    """Path and socket of a fork server, and the lock file it holds while it runs."""

    path: Path
    listener: socket.socket
    lock: int

    def close(self) -> None:
        """Close this process' descriptors; another process may keep its own."""
        self.listener.close()
        os.close(self.lock)


def listen(path: Path) -> Place | None:
    """Lock and bind a socket path; None if another server has it.

    Clients that connect during the imports wait for them, which is faster than importing
    themselves.
    """
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(FileNotFoundError):
        os.unlink(path)
    with short_name(path) as name:
        listener.bind(name)
    listener.listen(128)
    return Place(path, listener, lock)


def import_all(preload: str, kernels: bool) -> None:
    """Import the modules of `PRELOADS[preload]`; loading compiled kernels too takes seconds."""
    # Blocked too: what a fork gets before it can handle it must not be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    for name in PRELOADS[preload]:
        with suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module(name)
    if preload == "graph" and kernels:
        with suppress(Exception):
            import_module("headrace.runtime.workers.warm_up").load_kernels()
    # Frozen objects are skipped by the garbage collector, so their pages stay shared.
    gc.collect()
    gc.freeze()
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)


def serve(place: Place, identity: Mapping[str, Any], keep_s: float | None) -> int:
    """Serve until no clients are left; returns the exit code, of the server or of a forked task."""
    request = ForkServer(place.listener, identity, keep_s).serve()
    if request is not None:
        os.close(place.lock)
        return become(request)
    with suppress(OSError):
        os.unlink(place.path)
    return 0


def show_as(preload: str) -> None:
    """Set this process' command line, as `ps` shows it."""
    set_command_line(["headrace", "fork", "server", preload])


def main(arguments: Sequence[str]) -> int:
    """Import, then serve."""
    preload, path, keep, _ = arguments
    place = listen(Path(path))
    if place is None:
        # Another server has the socket.
        return 0
    show_as(preload)
    identity = identity_of(os.environ)
    # A server for a single run loads no kernels: its first task would wait for them.
    import_all(preload, kernels=keep != "0.0")
    return serve(place, identity, None if keep == "forever" else float(keep))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
