"""Run a command on an emulated machine: `python nsenter.py PID START_TICKS VARIABLES COMMAND...`.

A separate program without imports of headrace, because a process with threads cannot change its
mount namespace. Unlike `nsenter` it forwards signals and then still exits with the command's exit
code, and it kills the command when it is killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence

_KINDS = ("net", "uts", "pid", "mnt")
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
_SENT_BY_KERNEL = 0x80
_PR_SET_PDEATHSIG = 1
_NOT_FOUND = 127
_NO_MACHINE = 69


def main() -> int:
    """Enter the machine and run the command; returns its exit code."""
    pid, start_ticks, variables, *command = sys.argv[1:]
    folder = os.getcwd()
    try:
        enter(int(pid), int(start_ticks))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"the emulated machine cannot be entered: {error}\n")
        return _NO_MACHINE
    # Blocked signals are read by sigwaitinfo below; the command gets the original mask.
    signals = {*_FORWARDED, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    shares_terminal = os.isatty(0)
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if not shares_terminal:
            os.setpgid(0, 0)
        # Background processes ignore SIGINT; forwarded signals must not be ignored.
        for number in _FORWARDED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os._exit(_become(command, json.loads(variables), folder))
    return _wait_for(child, signals)


def enter(pid: int, start_ticks: int, kinds: Sequence[str] = _KINDS) -> None:
    """Enter the namespaces of a process, identified by its start time.

    Raises:
        OSError: It has exited, or this is not permitted.
        ValueError: The process ID belongs to another process.
    """
    namespaces = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in kinds]
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        began = int(file.read().rpartition(")")[2].split()[19])
    if began != start_ticks:
        raise ValueError(f"process ID {pid} now belongs to another process")
    libc = ctypes.CDLL(None, use_errno=True)
    for namespace in namespaces:
        if libc.setns(namespace, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        os.close(namespace)


def _become(command: Sequence[str], variables: Mapping[str, str | None], folder: str) -> int:
    changed = {**os.environ, **variables}
    environment = {name: value for name, value in changed.items() if value is not None}
    try:
        os.chdir(folder)
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be run: {error.strerror}\n")
    return _NOT_FOUND


def _wait_for(child: int, signals: set[signal.Signals]) -> int:
    while True:
        seen = signal.sigwaitinfo(signals)
        if seen.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        elif seen.si_code != _SENT_BY_KERNEL:  # the terminal signals the command itself
            os.kill(child, seen.si_signo)


if __name__ == "__main__":
    sys.exit(main())
