"""Start tasks through the fork servers of a machine; see `prefork.server`."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.prefork.identity import identity_of, python_path
from headrace.prefork.server import PADDING, receive, send, short_name

_CONNECT_TIMEOUT_S = 60.0
"""Timeout until a server listens, and until it has imported and forked."""

_RESTART_INTERVAL_S = 3.0
_POLL_INTERVAL_S = 0.02

KEEP_VARIABLE = "HEADRACE_KEEP_WARM_S"
"""Seconds that fork servers outlive the last run that used them; default 0."""


class ForkUnavailableError(Exception):
    """No fork server is available: start the process in the usual way."""


def socket_path(preload: str, identity: Mapping[str, Any], above: Path | None = None) -> Path:
    """Path of the fork server's socket, in a directory private to this user below `above`.

    Raises:
        ForkUnavailableError: The directory belongs to another user.
    """
    folder = (above or Path(tempfile.gettempdir())) / f"headrace-warm-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or not folder.is_dir():
        raise ForkUnavailableError(f"{folder} is not private to this user")
    text = json.dumps(identity, sort_keys=True)
    return folder / f"{preload}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def start_server(preload: str, path: Path, keep_s: float | None = 0.0) -> None:
    """Start a detached fork server; without clients it ends after `keep_s`, if not None."""
    keep = "forever" if keep_s is None else str(keep_s)
    module = "headrace.prefork.server"
    start_alone(module, [preload, str(path), keep, PADDING], path.with_suffix(".log"))


def start_alone(module: str, arguments: Sequence[str], log_path: Path) -> None:
    """Start a module in a detached process with this process' environment."""
    # Detached: Ray kills the children of a worker that ends, but the server has other clients too.
    script = "import os, sys; os.fork() and os._exit(0); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-u", "-m", module, *arguments]
    with log_path.open("ab") as log:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", script, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(python_path(os.environ))},
            cwd="/",
            start_new_session=True,
            check=False,
        )


class ForkedProcess:
    """A task forked by a fork server; closing its connection kills it."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self._code = -9  # tasks are killed with their server
        self.pid = pid

    def wait(self) -> None:
        """Wait until the task has ended; its process ID stays reserved until `reap`."""
        with suppress(OSError, ValueError):
            message = receive(self._connection)
            if message is not None:
                self._code = int(message["code"])

    def reap(self) -> int:
        """Release the process ID; returns the exit code, negative for a signal."""
        self._connection.close()
        return self._code


class ForkLease:
    """Keeps the fork server of a preload alive, and starts it if there is none."""

    def __init__(self, preload: str) -> None:
        self._preload = preload
        self._identity = identity_of(os.environ)
        self._connection: socket.socket | None = None
        self._path: Path | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._begun = threading.Thread(target=self._begin, name="fork server", daemon=True)
        self._begun.start()

    def fork(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        stdin: int,
        output: int,
    ) -> ForkedProcess:
        """Start a task; waits until the server's imports are done.

        Args:
            command: Interpreter, `-m`, module, arguments.
            environment: Its complete environment.
            folder: Its working directory.
            stdin: File descriptor of its standard input.
            output: File descriptor of its standard output and error.

        Raises:
            ForkUnavailableError: No server can start it.
        """
        self._begun.join(_CONNECT_TIMEOUT_S)
        if self._connection is None or self._path is None:
            raise ForkUnavailableError("there is no fork server")
        request = {
            "identity": identity_of(environment),
            "command": list(command),
            "environment": dict(environment),
            "folder": str(folder),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "cores": sorted(os.sched_getaffinity(0)),
            "max_files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text()),
        }
        connection, answer = _ask(self._path, request, (stdin, output))
        connection.settimeout(None)
        return ForkedProcess(connection, int(answer["pid"]))

    def close(self) -> None:
        """Release the server; it ends when it has no other clients."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()

    def _begin(self) -> None:
        try:
            path = socket_path(self._preload, self._identity)
            end_s = time.monotonic() + _CONNECT_TIMEOUT_S
            start_s = 0.0
            while not self._closed and self._connection is None and time.monotonic() < end_s:
                try:
                    connection, _ = _ask(path, {"identity": self._identity})
                except ForkUnavailableError:
                    # There is none, or it is about to end.
                    if time.monotonic() >= start_s:
                        start_server(self._preload, path, keep_s())
                        start_s = time.monotonic() + _RESTART_INTERVAL_S
                    time.sleep(_POLL_INTERVAL_S)
                    continue
                with self._lock:
                    self._connection, self._path = connection, path
                    if self._closed:
                        connection.close()
        except (OSError, ForkUnavailableError):
            return


def _ask(
    path: Path, request: Mapping[str, Any], fds: Sequence[int] = ()
) -> tuple[socket.socket, dict[str, Any]]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_TIMEOUT_S)
        with short_name(path) as name:
            connection.connect(name)
        send(connection, request, fds)
        answer = receive(connection)
        if answer is None or "pid" not in answer:
            raise ForkUnavailableError(f"the fork server refused the request: {answer}")
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError | ValueError):
            raise ForkUnavailableError(f"the fork server does not answer: {error}") from None
        raise
    return connection, answer


def keep_s() -> float:
    """Seconds that fork servers outlive the last run, from the environment."""
    try:
        return max(0.0, float(os.environ.get(KEEP_VARIABLE, "0")))
    except ValueError:
        return 0.0
