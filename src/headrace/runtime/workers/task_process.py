"""The process of a task actor, which exits with the actor at the latest."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.prefork.client import ForkedProcess, ForkLease, ForkUnavailableError
from headrace.prefork.task import TRAINER_MODULE

GRACE_S = 30.0
"""Grace period before a process is killed: trainers save after their step."""

URGENT_GRACE_S = 4.0
"""Grace period after a failure: a task that blocks on the failed one does not exit."""

_TAIL_BYTES = 8192
_WARNING = "[W"
"""Prefix of torch's warnings: `[W1115 13:40:00 socket.cpp:207] ...`."""


class TaskProcess:
    """One process in its own session, with its output appended to a file.

    Must be created by the main thread: a child exits with the thread that started it. The signal
    `end_by` requests its exit, or else closing its standard input. The fork server of `lease`
    starts it if available; else it is spawned.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        end_by: signal.Signals | None = None,
        lease: ForkLease | None = None,
    ) -> None:
        self._log, self._end_by = log, end_by
        self._began_bytes = log.stat().st_size if log.exists() else 0
        self._kill_s = self._repeat_s = math.inf
        self._ended_s: float | None = None
        self._code: int | None = None
        self._why_killed = ""
        self._input: int | None = None
        if end_by is None:
            stdin, self._input = os.pipe()
        else:
            stdin = os.open(os.devnull, os.O_RDONLY)
        variables = dict(os.environ if environment is None else environment)
        try:
            with log.open("ab") as output:
                self._process = _start(
                    command, stdin, output.fileno(), variables, folder or Path.cwd(), end_by, lease
                )
        finally:
            os.close(stdin)
        # Other processes find the task's processes by this file.
        log.with_suffix(".pid").write_text(str(self.pid), encoding="ascii")
        threading.Thread(target=self._wait, name="wait for exit", daemon=True).start()

    @property
    def pid(self) -> int:
        """PID of the process."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code; none while it runs. Processes of its session are killed when it exits."""
        if self._ended_s is None:
            now_s = time.monotonic()
            if now_s >= self._kill_s:
                self._kill()
            elif now_s >= self._repeat_s:
                self._repeat_s = math.inf
                self._request_exit()
            return None
        if self._code is None:
            # Kill the group before `reap` releases its PID.
            self._kill()
            self._code = self._process.reap()
            self._close_input()
        return self._code

    @property
    def ended_ago_s(self) -> float:
        """Seconds since the exit."""
        return 0.0 if self._ended_s is None else time.monotonic() - self._ended_s

    @property
    def how(self) -> str:
        """How it exited, formatted to follow its name: the reason of `kill`, or its exit code."""
        return "" if self._code is None else self._why_killed or how_ended(self._code)

    def kill(self, why: str) -> None:
        """Kill the process; `how` tells why."""
        if self.code is None:
            self._why_killed = f"{why}, and was killed"
            self._kill()

    def stop(self, grace_s: float = URGENT_GRACE_S) -> None:
        """Request the exit; `code` repeats this after half the grace period, and kills at its end.

        A later call can only shorten the grace period.
        """
        if self.code is not None:
            return
        now_s, is_first = time.monotonic(), math.isinf(self._kill_s)
        if now_s + grace_s < self._kill_s:
            self._kill_s, self._repeat_s = now_s + grace_s, now_s + grace_s / 2
        if is_first:
            self._request_exit()

    def end(self, grace_s: float = 1.0) -> None:
        """Stop the process and wait."""
        self.stop(grace_s)
        while self.code is None:
            time.sleep(0.01)

    def last_error_line(self) -> str:
        """Last output line that contains `error`, else the last line; without warnings."""
        try:
            with self._log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._began_bytes, size - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        output = [line.strip() for line in lines if line.strip() and not line.startswith(_WARNING)]
        errors = [line for line in output if "error" in line.lower()]
        return (errors or output or [""])[-1][:500]

    def _request_exit(self) -> None:
        if self._end_by is None:
            self._close_input()
        else:
            with suppress(ProcessLookupError):
                os.kill(self.pid, self._end_by)

    def _close_input(self) -> None:
        if self._input is not None:
            os.close(self._input)
            self._input = None

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _wait(self) -> None:
        self._process.wait()
        self._ended_s = time.monotonic()


class SpawnedProcess:
    """A child of this process."""

    def __init__(
        self,
        command: Sequence[str],
        stdin: int,
        output: int,
        environment: Mapping[str, str],
        folder: Path,
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """PID of the process."""
        return self._process.pid

    def wait(self) -> None:
        """Wait for the exit; the PID stays reserved until `reap`."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def reap(self) -> int:
        """Release the PID; return the exit code, negative for a signal."""
        return self._process.wait()


def _start(
    command: Sequence[str],
    stdin: int,
    output: int,
    environment: Mapping[str, str],
    folder: Path,
    end_by: signal.Signals | None,
    lease: ForkLease | None,
) -> ForkedProcess | SpawnedProcess:
    if lease is not None:
        with suppress(ForkUnavailableError):
            return lease.fork(command, environment, folder, stdin, output)
    with _signal_for_child(end_by, is_blocked=TRAINER_MODULE in command):
        return SpawnedProcess(command, stdin, output, environment, folder)


@contextmanager
def _signal_for_child(number: signal.Signals | None, *, is_blocked: bool) -> Iterator[None]:
    """Let a child inherit that a signal is not ignored; a trainer, that it is blocked.

    A trainer unblocks it where it can handle it; another command may never do so.
    """
    if number is None:
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (number,) if is_blocked else ())
    is_ignored = signal.getsignal(number) is signal.SIG_IGN
    try:
        if is_ignored:
            signal.signal(number, signal.SIG_DFL)
        yield
    finally:
        if is_ignored:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def how_ended(code: int) -> str:
    """Describe an exit code for messages."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", possibly out of memory" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"
