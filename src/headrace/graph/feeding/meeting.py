"""Where a sampler and a trainer of one machine meet, if neither started the other: a socket file.

The file lies in a folder for this user alone, and takes one connection; what goes over it is a
hand-over like any other.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headrace.core.errors import SpecError
from headrace.graph.feeding.errors import SamplerLostError
from headrace.graph.feeding.handover import QUIET_S, LocalReceiver


def await_trainer(path: Path, on_listening: Callable[[], None]) -> socket.socket:
    """Listen until a trainer comes; nobody else is let in.

    Args:
        path: Of the file; one that an earlier sampler left is replaced.
        on_listening: Called once a trainer may come.

    Raises:
        SpecError: The file cannot be made.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        try:
            path.unlink(missing_ok=True)
            door.bind(os.fspath(path))
            path.chmod(0o600)
        except OSError as error:
            raise SpecError(
                f"a sampler cannot listen at {path}: {error.strerror or error}",
                "give a path of at most 107 bytes in a folder of yours",
            ) from None
        door.listen(1)
        on_listening()
        connection, _ = door.accept()
    with suppress(OSError):
        path.unlink()
    return connection


def meet_sampler(path: Path, sampler: str, quiet_s: float = QUIET_S) -> LocalReceiver:
    """Connect to a sampler that listens.

    Args:
        path: Of the file.
        sampler: Task and machine, for messages.
        quiet_s: When a sampler that says nothing is dead.

    Raises:
        SamplerLostError: It does not listen.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(quiet_s)
    try:
        sock.connect(os.fspath(path))
    except OSError as error:
        sock.close()
        raise SamplerLostError(
            f"{sampler} does not listen at {path}: {error.strerror or error}",
            "see its log, and start the run again",
        ) from None
    return LocalReceiver(sock, sampler, quiet_s)
