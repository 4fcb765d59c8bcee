"""Connects to a live Ray cluster, and fails within seconds if there is none."""

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

_CONNECT_TIMEOUT_S = 5.0
_RECONNECT_VARIABLE, _RECONNECT_S = "RAY_gcs_rpc_server_reconnect_timeout_s", "86400"
_ADDRESS = re.compile(r"cluster at ([\w.-]+):(\d{1,5})")
_VERSIONS = re.compile(r"Version mismatch:.* Ray: (\S+) Python: (\S+).* Ray: (\S+) Python: (\S+)")
_RAY_LINE = re.compile(r"\[\d{4}-\d\d-\d\d [\d:,]+ [IWE] \d+ \d+\] ")
_REMEDY = (
    "run this on a machine of the cluster (in a testbed: `headrace testbed exec MACHINE -- ...`), "
    "or give the address of its head: --address HOST:6379"
)


@contextmanager
def connected(address: str | None, **options: Any) -> Iterator[Any]:
    """Connect to a cluster and yield the module `ray`; disconnect at the end.

    Args:
        address: Address of the head; else `RAY_ADDRESS`, else the cluster of this machine.
        **options: Further arguments of `ray.init`.

    Raises:
        MissingExtraError: Ray is not installed.
        SpecError: There is no cluster, it rejects the token, or it has other versions.
    """
    try:
        import ray
    except ImportError:
        raise MissingExtraError("Ray is not installed", "pip install 'headrace[train]'") from None
    # Ray ends a process that has not reached the head for a minute: a run can end without it.
    os.environ.setdefault(_RECONNECT_VARIABLE, _RECONNECT_S)
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    check_reachable(address)
    try:
        with _without_ray_lines():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if versions := _VERSIONS.search(" ".join(str(error).split())):
            ray_there, python_there, ray_here, python_here = versions.groups()
            raise SpecError(
                f"the cluster has Ray {ray_there} and Python {python_there}, this machine has Ray "
                f"{ray_here} and Python {python_here}",
                f"use Python {python_there} here, with `pip install ray=={ray_there}`",
            ) from None
        where = "on this machine" if address == "auto" else f"at {address}"
        reason = str(error).strip().splitlines()[0]
        if isinstance(error, ray.exceptions.AuthenticationError):
            raise SpecError(f"Ray has no token for its cluster ({reason})", REMEDY) from None
        # With address "auto" only the error contains the cluster's address.
        if found := _ADDRESS.search(reason):
            check_token(found[1], int(found[2]))
        # Omit Ray's advice, which names Ray's options instead of ours.
        detail = "" if "any running Ray instance" in reason else f" ({reason})"
        raise SpecError(f"there is no Ray cluster {where}{detail}", _REMEDY) from None
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _without_ray_lines() -> Iterator[None]:
    """Filter log lines of Ray's C++ libraries, which write directly to file descriptor 2."""
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            output.seek(0)
            lines = output.read().decode(errors="replace").splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not _RAY_LINE.match(line)))


def check_reachable(address: str) -> None:
    """Raise SpecError if HOST:PORT is unreachable; Ray itself would time out after minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        reason = error.strerror or error
        raise SpecError(f"there is no Ray cluster at {address} ({reason})", _REMEDY) from None
    check_token(host.strip("[]"), int(port))
