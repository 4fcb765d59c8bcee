"""Run a service as a process: config file, ready file, shutdown.

It serves until its standard input closes, which happens whenever its parent ends, or until SIGTERM.
The config file names the credentials file: no secret is an argument or in the environment.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TypeVar

from pydantic import ValidationError

from headrace.core.errors import HeadraceError, SpecError
from headrace.core.validation_errors import first_problem
from headrace.core.values import Value
from headrace.linux.atomic_write import atomic_write
from headrace.rpc.credentials import Credentials

_PR_SET_PDEATHSIG = 1

Config = TypeVar("Config", bound=Value)


def run_service(
    module: str, kind: type[Config], serve: Callable[[Config], None], arguments: list[str] | None
) -> int:
    """Read `--config FILE` of type `kind` and call `serve`; returns the exit code.

    Args:
        module: Module whose `__main__` calls this.
        kind: Type of the config.
        serve: Serves until `wait_for_end` returns.
        arguments: Command line; None for that of the process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        serve(begin_process(module, kind, arguments, serve.__doc__))
    except HeadraceError as error:
        logging.error("%s", error)
        return error.exit_code
    return 0


def begin_process(
    module: str, kind: type[Config], arguments: list[str] | None, description: str | None
) -> Config:
    """Configure logging and read `--config FILE`; every client needs a file descriptor."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    parser = argparse.ArgumentParser(module, description=description)
    parser.add_argument("--config", required=True, type=Path, help=f"JSON; see {kind.__name__}")
    path = parser.parse_args(arguments).config
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    return load_config(path, kind)


def load_config(path: str | os.PathLike[str], kind: type[Config]) -> Config:
    """Read the config file."""
    try:
        return kind.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}", "check the path") from None
    except ValidationError as error:
        raise SpecError(f"{path}: {first_problem(error)}", f"see {kind.__name__}") from None


def load_credentials(path: Path, tls: bool) -> Credentials:
    """Load credentials, without their TLS identity if TLS is off."""
    credentials = Credentials.load(path)
    if not tls:
        return replace(credentials, identity=None)
    if credentials.identity is None:
        raise SpecError(f"TLS is on, but {path} has no certificate", "issue one, or set tls: false")
    return credentials


def wait_for_end(ready: Path, announcement: Mapping[str, object]) -> None:
    """Write the ready file, with the process ID, and wait until the service must end."""
    # A pipe: the interrupted thread may hold an event's lock. With set_wakeup_fd, a signal just
    # before the read is not missed.
    ended, end = os.pipe()
    os.set_blocking(end, False)
    signal.set_wakeup_fd(end)
    signal.signal(signal.SIGTERM, _ignore_signal)
    signal.signal(signal.SIGINT, _ignore_signal)
    call_after_parent(lambda: os.write(end, b"."))
    write_ready(ready, announcement)
    os.read(ended, 1)


def write_ready(ready: Path, announcement: Mapping[str, object]) -> None:
    """Write the ready file, with the process ID."""
    atomic_write(ready, json.dumps({**announcement, "pid": os.getpid()}))


def call_after_parent(end: Callable[[], object]) -> None:
    """Call `end` in a thread when standard input closes, as it does when the parent ends."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1 << 16):
            pass
        end()

    threading.Thread(target=wait, daemon=True).start()


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing; the wakeup descriptor ends the wait."""
