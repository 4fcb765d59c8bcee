"""Start tasks from a machine's fork servers; see `fork_server`."""

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

PRELOAD_OF = {
    "headrace.graph.store": "graph",
    "headrace.graph.sampler_worker": "graph",
    "headrace.runtime.trainer": "train",
    "headrace.training.parameter_server": "train",
}
"""Which fork server starts a module."""

_CONNECT_S = 60.0
"""How long a server may take until it listens, and until it has imported and forked."""

_START_AGAIN_S = 3.0
_LOOK_S = 0.02


KEEP_VARIABLE = "HEADRACE_KEEP_WARM_S"
"""How many seconds fork servers outlive the last run that used them; 0 if it is not set."""


class ForkUnavailableError(Exception):
    """No fork server can be had: start the process in the usual way."""


def socket_path(preload: str, identity: Mapping[str, Any], above: Path | None = None) -> Path:
    """Where the fork server of this user and identity listens, in a folder for the user alone.

    Args:
        preload: A key of `fork_server.PRELOADS`.
        identity: Whom it admits.
        above: Folder of temporary files; none for this process' own.

    Raises:
        ForkUnavailableError: The folder is somebody else's.
    """
    folder = (above or Path(tempfile.gettempdir())) / f"headrace-warm-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or not folder.is_dir():
        raise ForkUnavailableError(f"{folder} is not for this user alone")
    text = json.dumps(identity, sort_keys=True)
    return folder / f"{preload}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def start_server(preload: str, path: Path, keep_s: float | None = 0.0) -> None:
    """Start a fork server with this process' environment; it is nobody's child.

    Args:
        preload: A key of `fork_server.PRELOADS`.
        path: Where it listens.
        keep_s: How long it lives without clients, once it has had one; none to live on.
    """
    keep = "forever" if keep_s is None else str(keep_s)
    module = "headrace.prefork.server"
    start_alone(module, [preload, str(path), keep, PADDING], path.with_suffix(".log"))


def start_alone(module: str, arguments: Sequence[str], log_path: Path) -> None:
    """Start a module with this process' environment in a process that is nobody's child."""
    # Ray ends what its workers have started when they end: a fork server serves others too.
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
    """A task that a fork server has forked for this process.

    Args:
        connection: To the server; closing it ends the task.
        pid: Of the task.
    """

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self._code = -9  # what ends a server ends its tasks
        self.pid = pid

    def wait(self) -> None:
        """Wait until it has ended; its number stays taken until `reap`."""
        with suppress(OSError, ValueError):
            message = receive(self._connection)
            if message is not None:
                self._code = int(message["code"])

    def reap(self) -> int:
        """Free its number; the exit code, negative for a signal."""
        self._connection.close()
        return self._code


class ForkLease:
    """Keeps a fork server of this machine alive, and starts it if there is none.

    Args:
        preload: A key of `fork_server.PRELOADS`.
    """

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
        """Start a task; waits for the server's imports if they are not done yet.

        Args:
            command: Interpreter, `-m`, module, arguments.
            environment: All of its environment.
            folder: Where it runs.
            stdin: Its standard input ...
            output: ... and its output, file descriptors.

        Raises:
            ForkUnavailableError: No server can do that.
        """
        self._begun.join(_CONNECT_S)
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
        """Let the server end, if nobody else needs it."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()

    def _begin(self) -> None:
        try:
            path = socket_path(self._preload, self._identity)
            end_s = time.monotonic() + _CONNECT_S
            start_s = 0.0
            while not self._closed and self._connection is None and time.monotonic() < end_s:
                try:
                    connection, _ = _ask(path, {"identity": self._identity})
                except ForkUnavailableError:
                    # There is none, or it is about to end because nobody needed it.
                    if time.monotonic() >= start_s:
                        start_server(self._preload, path, _keep_s())
                        start_s = time.monotonic() + _START_AGAIN_S
                    time.sleep(_LOOK_S)
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
        connection.settimeout(_CONNECT_S)
        with short_name(path) as name:
            connection.connect(name)
        send(connection, request, fds)
        answer = receive(connection)
        if answer is None or "pid" not in answer:
            raise ForkUnavailableError(f"the fork server refuses: {answer}")
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError | ValueError):
            raise ForkUnavailableError(f"the fork server does not answer: {error}") from None
        raise
    return connection, answer


def _keep_s() -> float:
    try:
        return max(0.0, float(os.environ.get(KEEP_VARIABLE, "0")))
    except ValueError:
        return 0.0
