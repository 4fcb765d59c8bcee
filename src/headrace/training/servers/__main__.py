"""Run a parameter server as a process: `python -m headrace.training.servers --config FILE`.

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
from headrace.training.servers.config import ServerConfig, load_config

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str] | None = None) -> int:
    """Serve one shard of each model; the ready file says on which port."""
    parser = argparse.ArgumentParser("headrace.training.servers", description=main.__doc__)
    parser.add_argument("--config", required=True, type=Path, help="JSON file; see ServerConfig")
    path = parser.parse_args(arguments).config
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Linux only; elsewhere the closed input alone ends the server.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        return _serve(load_config(path))
    except HeadraceError as error:
        logging.error("%s", error)
        return error.exit_code


def _serve(config: ServerConfig) -> int:
    import torch

    from headrace.training.servers.serving import ParameterServer, Recording

    torch.set_num_threads(config.num_threads)
    with Recording(config.trace, config.task, time.monotonic) as recording:
        server = ParameterServer(config, time.monotonic, recording.done)
        # A pipe, because an event's lock may be held by the very thread that a signal interrupts.
        ended, end = os.pipe()

        def tell(number: int, frame: FrameType | None) -> None:
            os.write(end, b".")

        signal.signal(signal.SIGTERM, tell)
        signal.signal(signal.SIGINT, tell)
        threading.Thread(target=_wait_for_parent, args=(end,), daemon=True).start()
        partial = config.ready.with_name(config.ready.name + ".partial")
        partial.write_text(json.dumps({"port": server.port, "pid": os.getpid()}), encoding="ascii")
        partial.replace(config.ready)
        logging.info("%s serves on %s:%d", config.task, config.host, server.port)
        os.read(ended, 1)
        server.close()
    return 0


def _wait_for_parent(end: int) -> None:
    while os.read(sys.stdin.fileno(), 1 << 16):
        pass
    os.write(end, b".")


if __name__ == "__main__":
    sys.exit(main())
