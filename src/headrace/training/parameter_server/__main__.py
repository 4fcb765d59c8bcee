"""A parameter server as a process: `python -m headrace.training.parameter_server --config FILE`."""

from __future__ import annotations

import logging
import sys
import time  # noqa: TID251 - where the process begins, its clock comes in

from headrace.linux.malloc import share_one_heap
from headrace.rpc.service_process import run_service, wait_for_end
from headrace.training.parameter_server.types import ServerConfig


def main(arguments: list[str] | None = None) -> int:
    """Run a parameter server; returns the exit code."""
    share_one_heap()
    return run_service("headrace.training.parameter_server", ServerConfig, _serve, arguments)


def _serve(config: ServerConfig) -> None:
    """Serve one shard of each model; the ready file has the port."""
    import torch

    from headrace.training.parameter_server.server import ParameterServer, Recording

    torch.set_num_threads(config.num_threads)
    with Recording(config.trace, config.task, time.monotonic) as recording:
        server = ParameterServer(config, time.monotonic, recording.done)
        logging.info("%s listens on %s:%d", config.task, config.host, server.port)
        wait_for_end(config.ready, {"port": server.port})
        server.close()


if __name__ == "__main__":
    sys.exit(main())
