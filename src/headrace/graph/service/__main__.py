"""Run a store as a process: `python -m headrace.graph.service --config FILE`.

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
import time  # noqa: TID251 - where the process begins, its clock comes in
from pathlib import Path
from types import FrameType

from headrace.core.errors import HeadraceError
from headrace.graph.service.allocator import keep_freed_memory
from headrace.graph.service.config import StoreConfig, load_config, shard_of

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str] | None = None) -> int:
    """Serve parts of a graph, each on a port of its own, which the ready file names."""
    parser = argparse.ArgumentParser("headrace.graph.service", description=main.__doc__)
    parser.add_argument("--config", required=True, type=Path, help="JSON file; see StoreConfig")
    path = parser.parse_args(arguments).config
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    _end_with_parent()
    keep_freed_memory()
    try:
        return _serve(load_config(path))
    except HeadraceError as error:
        logging.error("%s", error)
        return error.exit_code


def _serve(config: StoreConfig) -> int:
    from headrace.core.errors import MissingExtraError
    from headrace.graph.service.security import Credentials

    try:
        from headrace.graph.service.store import StoreServer
    except ImportError:
        raise MissingExtraError(
            "pyarrow is not installed", "pip install 'headrace[train]'"
        ) from None

    credentials = config.admitting(Credentials.load(config.credentials))
    servers = {
        part: StoreServer(
            shard_of(config, part),
            credentials,
            config.host,
            port,
            config.limits,
            config.warm,
            time.perf_counter,
            config.sockets,
        )
        for part, port in config.ports.items()
    }
    # A pipe, because an event's lock may be held by the very thread that a signal interrupts.
    ended, end = os.pipe()

    def tell(number: int, frame: FrameType | None) -> None:
        os.write(end, b".")

    signal.signal(signal.SIGTERM, tell)
    signal.signal(signal.SIGINT, tell)
    threading.Thread(target=_wait_for_parent, args=(end,), daemon=True).start()
    ports = {part: server.port for part, server in servers.items()}
    for part, port in ports.items():
        logging.info("serving part %d on %s:%d", part, config.host, port)
    first = next(iter(ports.values()), None)
    ready = {"ports": ports, "port": first, "pid": os.getpid()}
    _write_whole(config.ready, json.dumps(ready))
    os.read(ended, 1)
    for server in servers.values():
        server.close()
    return 0


def _wait_for_parent(end: int) -> None:
    while os.read(sys.stdin.fileno(), 1 << 16):
        pass
    os.write(end, b".")


def _end_with_parent() -> None:
    # Linux only; elsewhere the closed input alone ends the store.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="ascii")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
