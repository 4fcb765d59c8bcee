"""Reach a live Ray cluster, or say within seconds that there is none."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.core.errors import MissingExtraError, SpecError
from headrace.runtime.cluster.ray_token import REMEDY, check_token

_CONNECT_S = 5.0
_ADDRESS = re.compile(r"cluster at ([\w.-]+):(\d{1,5})")
_VERSIONS = re.compile(r"Version mismatch:.* Ray: (\S+) Python: (\S+).* Ray: (\S+) Python: (\S+)")
_RAY_LINE = re.compile(r"\[\d{4}-\d\d-\d\d [\d:,]+ [IWE] \d+ \d+\] ")
_REMEDY = (
    "run this on a machine of the cluster (in a testbed: `headrace testbed exec MACHINE -- ...`), "
    "or name its head: --address HOST:6379"
)


@contextmanager
def connected(address: str | None, **options: Any) -> Iterator[Any]:
    """The module `ray`, connected to a cluster; let go of it at the end.

    Args:
        address: Of the head; else as `RAY_ADDRESS` says, else the cluster of this machine.
        **options: More for `ray.init`.

    Raises:
        MissingExtraError: Ray is not installed.
        SpecError: There is no cluster, it does not let this process in, or it has other versions.
    """
    try:
        import ray
    except ImportError:
        raise MissingExtraError("Ray is not installed", "pip install 'headrace[train]'") from None
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    check_reachable(address)
    try:
        with _without_ray_lines():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if versions := _VERSIONS.search(" ".join(str(error).split())):
            ray_there, python_there, ray_here, python_here = versions.groups()
            raise SpecError(
                f"the cluster has Ray {ray_there} and Python {python_there}, here are Ray "
                f"{ray_here} and Python {python_here}",
                f"use Python {python_there} here, with `pip install ray=={ray_there}`",
            ) from None
        where = "on this machine" if address == "auto" else f"at {address}"
        reason = str(error).strip().splitlines()[0]
        if isinstance(error, ray.exceptions.AuthenticationError):
            raise SpecError(f"Ray has no token for its cluster ({reason})", REMEDY) from None
        # Of a cluster that Ray found by itself only the error tells the address.
        if found := _ADDRESS.search(reason):
            check_token(found[1], int(found[2]))
        # Ray's advice, its own options, would stand beside ours.
        said = "" if "any running Ray instance" in reason else f" ({reason})"
        raise SpecError(f"there is no Ray cluster {where}{said}", _REMEDY) from None
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _without_ray_lines() -> Iterator[None]:
    """Keep what Ray's libraries log, once a second while they try, from the user's terminal.

    They write to the file descriptor, where Python's own stream does not matter.
    """
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            said.seek(0)
            lines = said.read().decode(errors="replace").splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not _RAY_LINE.match(line)))


def check_reachable(address: str) -> None:
    """Find out at once what Ray would find out after minutes.

    Raises:
        SpecError: Nobody listens at an address of the form HOST:PORT, or not to this process.
    """
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError as error:
        reason = error.strerror or error
        raise SpecError(f"there is no Ray cluster at {address} ({reason})", _REMEDY) from None
    check_token(host.strip("[]"), int(port))
