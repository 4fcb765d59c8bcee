"""A service as a process of its own: its file, its ready file, and its end.

It serves until its standard input closes, which happens when its parent ends, however it ends; or
until SIGTERM. The file names the credentials: no secret is an argument or in the environment.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TypeVar

from pydantic import ValidationError

from headrace.core.errors import HeadraceError, SpecError
from headrace.core.values import Value
from headrace.rpc.credentials import Credentials

_PR_SET_PDEATHSIG = 1

Config = TypeVar("Config", bound=Value)


def run_service(
    module: str, kind: type[Config], serve: Callable[[Config], None], arguments: list[str] | None
) -> int:
    """Read `--config FILE` and serve; the exit code.

    Args:
        module: Whose `__main__` this is.
        kind: What the file holds.
        serve: Serves until `wait_for_end` returns.
        arguments: Of the process; none for its own.
    """
    parser = argparse.ArgumentParser(module, description=serve.__doc__)
    parser.add_argument("--config", required=True, type=Path, help=f"JSON; see {kind.__name__}")
    path = parser.parse_args(arguments).config
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Linux only; elsewhere the closed input alone ends the service.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        serve(load_config(path, kind))
    except HeadraceError as error:
        logging.error("%s", error)
        return error.exit_code
    return 0


def load_config(path: str | os.PathLike[str], kind: type[Config]) -> Config:
    """Read the file.

    Raises:
        SpecError: It cannot be read, or something in it is wrong.
    """
    try:
        return kind.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}", "give a file") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise SpecError(f"{path}: {where}: {first['msg']}", f"see {kind.__name__}") from None


def load_credentials(path: Path, tls: bool) -> Credentials:
    """Who may ask: with TLS, unless it is switched off.

    Raises:
        SpecError: The file cannot be read, or TLS is wanted and there is no certificate.
    """
    credentials = Credentials.load(path)
    if not tls:
        return replace(credentials, identity=None)
    if credentials.identity is None:
        raise SpecError(f"TLS is on, and {path} has no certificate", "issue one, or say tls: false")
    return credentials


def wait_for_end(ready: Path, announcement: Mapping[str, object]) -> None:
    """Write the ready file, with the process number, and wait until the service is to end."""
    # A pipe, because an event's lock may be held by the very thread that a signal interrupts; and
    # Python's own wakeup, because a signal that comes just before reading would interrupt nothing.
    ended, end = os.pipe()
    os.set_blocking(end, False)
    signal.set_wakeup_fd(end)
    signal.signal(signal.SIGTERM, _let_it_wake)
    signal.signal(signal.SIGINT, _let_it_wake)
    threading.Thread(target=_wait_for_parent, args=(end,), daemon=True).start()
    partial = ready.with_name(ready.name + ".partial")
    partial.write_text(json.dumps({**announcement, "pid": os.getpid()}), encoding="ascii")
    partial.replace(ready)
    os.read(ended, 1)


def _let_it_wake(number: int, frame: FrameType | None) -> None:
    """Nothing more is to be done."""


def _wait_for_parent(end: int) -> None:
    while os.read(sys.stdin.fileno(), 1 << 16):
        pass
    os.write(end, b".")
