"""A process that has imported what tasks import, and forks them.

Importing torch and PyG takes 5.6 s of CPU time in every trainer, importing pyarrow, numba and the
graph package 0.9 s in every store and sampler. A fork server does that once per machine; each task
is then a fork of it, which takes milliseconds.

`python -m headrace.prefork.server PRELOAD SOCKET KEEP_S PADDING` listens on a Unix
socket. A client connects, sends its identity and is admitted if the server has the same one: a
process with another version, interpreter or relevant environment variable would import something
else. Each connection carries at most one task. The task is killed when its connection closes, that
is when its client ends, however that ends; all tasks end with the server.
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
        "headrace.training.parameter_server.__main__",
        "headrace.training.parameter_server.server",
    ),
}
"""What a fork server imports, by the kind of its tasks; what is not installed is left out."""

PADDING = "-" * 4000
"""Makes room for the command line of a task, which is written over the server's own."""

_LENGTH = struct.Struct("!I")
_MAX_REQUEST_BYTES = 1 << 24
_REQUEST_TIMEOUT_S = 20.0
_FIRST_CLIENT_S = 60.0
_NUM_FDS = 2  # standard input, and output with errors


@dataclass(eq=False)
class Client:
    """A connection, and its task.

    Attributes:
        connection: Where the client is.
        pid: Of its task; 0 while it has none.
        pidfd: Becomes readable when the task ends.
        is_gone: Whether the client has closed its end.
    """

    connection: socket.socket
    pid: int = 0
    pidfd: int = -1
    is_gone: bool = False


class ForkServer:
    """Admits clients and forks their tasks.

    Args:
        listener: Where clients connect.
        identity: Who is admitted.
        keep_s: How long to live without a client; none to live on.
    """

    def __init__(
        self, listener: socket.socket, identity: Mapping[str, Any], keep_s: float | None
    ) -> None:
        self._listener, self._identity, self._keep_s = listener, identity, keep_s
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, None)
        self._clients: set[Client] = set()
        self._was_used = False

    def serve(self) -> dict[str, Any] | None:
        """Serve until nobody is left.

        Returns:
            In a task that was forked: its request. In the server: none.
        """
        retry_budget_s = None if self._keep_s is None else max(self._keep_s, _FIRST_CLIENT_S)
        while True:
            ready = self._selector.select(None if self._clients else retry_budget_s)
            if not ready and not self._clients:
                return None
            if self._was_used:
                retry_budget_s = self._keep_s
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
                    # A client says nothing more: it has closed its end.
                    self._drop(client)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(_REQUEST_TIMEOUT_S)
        client = Client(connection)
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _receive(self, client: Client) -> dict[str, Any] | None:
        """Read a request and fork; the request in the fork, none here."""
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
            self._was_used = True
            if "command" not in request:
                # A lease: it keeps the server alive.
                send(client.connection, {"pid": os.getpid()})
                return None
            pid = os.fork()
            if pid == 0:
                self._close_all()
                _move(fds)
                return request
            client.pid, client.pidfd = pid, os.pidfd_open(pid)
            self._selector.register(client.pidfd, selectors.EVENT_READ, client)
            send(client.connection, {"pid": pid})
        except (OSError, ValueError, KeyError, struct.error):
            self._drop(client)
        finally:
            for fd in fds:
                os.close(fd)
        return None

    def _close_all(self) -> None:
        """Close what belongs to the server, in a fork."""
        for client in self._clients:
            client.connection.close()
            if client.pidfd >= 0:
                os.close(client.pidfd)
        self._selector.close()
        self._listener.close()

    def _report_end(self, client: Client) -> None:
        """Tell a client how its task ended; the task's number stays taken until it hangs up."""
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
        """Forget a client; its task ends."""
        client.is_gone = True
        self._selector.unregister(client.connection)
        client.connection.close()
        if not client.pid:
            self._clients.discard(client)
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(client.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(client.pid, signal.SIGKILL)  # before it had a group of its own
        if client.pidfd not in self._selector.get_map():
            self._reap(client)

    def _reap(self, client: Client) -> None:
        os.waitpid(client.pid, 0)
        os.close(client.pidfd)
        self._clients.discard(client)


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A name of a socket's path that is short enough for the kernel, which takes 107 bytes."""
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
    """The next message; none at the end of the connection."""
    head = _read(connection, _LENGTH.size)
    return None if head is None else _body(connection, head)


def _read_request(connection: socket.socket, fds: list[int]) -> dict[str, Any] | None:
    head, received, _, _ = socket.recv_fds(connection, _LENGTH.size, _NUM_FDS)
    fds += received
    return None if len(head) < _LENGTH.size else _body(connection, head)


def _body(connection: socket.socket, head: bytes) -> dict[str, Any] | None:
    (length,) = _LENGTH.unpack(head)
    if length > _MAX_REQUEST_BYTES:
        raise ValueError(f"a message of {length} bytes")
    data = _read(connection, length)
    if data is None:
        return None
    message = json.loads(data)
    if not isinstance(message, dict):
        raise ValueError("a message is an object")
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
    """Make what was received standard input, output and errors."""
    os.dup2(fds[0], 0)
    os.dup2(fds[1], 1)
    os.dup2(fds[1], 2)


@dataclass(frozen=True)
class Place:
    """Where a fork server listens; nobody else does while it holds the lock.

    Attributes:
        path: Of its socket.
        listener: The socket.
        lock: An open file.
    """

    path: Path
    listener: socket.socket
    lock: int

    def close(self) -> None:
        """Leave it to another process that has it open too."""
        self.listener.close()
        os.close(self.lock)


def listen(path: Path) -> Place | None:
    """Take a place; none if another server has it.

    Whoever connects before the imports are done waits for them, which is shorter than its own.
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
    """Import what tasks of a kind import.

    Args:
        preload: A key of `PRELOADS`.
        kernels: Whether to load compiled kernels too, which takes seconds.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    for name in PRELOADS[preload]:
        with suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module(name)
    if preload == "graph" and kernels:
        with suppress(Exception):
            import_module("headrace.runtime.workers.warm_up").load_kernels()
    # What is here already is not looked at by the collector, which would copy its pages.
    gc.collect()
    gc.freeze()
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)


def serve(place: Place, identity: Mapping[str, Any], keep_s: float | None) -> int:
    """Serve until nobody is left; also the end of every task that is forked here.

    Args:
        place: Where.
        identity: Who is admitted.
        keep_s: How long to live without a client; none to live on.

    Returns:
        The exit code, of this process or of a task.
    """
    request = ForkServer(place.listener, identity, keep_s).serve()
    if request is not None:
        os.close(place.lock)
        return become(request)
    with suppress(OSError):
        os.unlink(place.path)
    return 0


def show_as(preload: str) -> None:
    """Say in this process' command line what it is."""
    set_command_line(["headrace", "fork", "server", preload])


def main(arguments: Sequence[str]) -> int:
    """Import, then serve."""
    preload, path, keep, _ = arguments
    place = listen(Path(path))
    if place is None:
        # The first one serves both.
        return 0
    show_as(preload)
    identity = identity_of(os.environ)
    # A server for one run alone loads no kernels: its first task would have to wait for them.
    import_all(preload, kernels=keep != "0.0")
    return serve(place, identity, None if keep == "forever" else float(keep))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
