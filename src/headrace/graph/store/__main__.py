"""Run a graph store: `python -m headrace.graph.store --config FILE`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time  # noqa: TID251 - the process entry point supplies the clock

from headrace.graph.format.checksums import Verification, files_of
from headrace.graph.format.manifest import load_manifest
from headrace.graph.store.config import StoreConfig, embeddings_of, shard_of
from headrace.graph.store.server import StoreServer
from headrace.linux.malloc import keep_freed_memory
from headrace.rpc.service_process import load_credentials, run_service, wait_for_end


def main(arguments: list[str] | None = None) -> int:
    """Run the service from a config file and return the exit code."""
    keep_freed_memory()
    return run_service("headrace.graph.store", StoreConfig, _serve, arguments)


def _serve(config: StoreConfig) -> None:
    """Serve graph partitions, each on its own port; the ready file lists the ports."""
    credentials = load_credentials(config.credentials, config.tls)
    shards = {part: shard_of(config, part) for part in config.ports}
    servers = {
        part: StoreServer(
            shards[part],
            credentials,
            config.host,
            port,
            config.limits,
            config.warm,
            time.perf_counter,
            embeddings_of(config, shards[part]),
        )
        for part, port in config.ports.items()
    }
    ports = {part: server.port for part, server in servers.items()}
    for part, port in ports.items():
        logging.info("serving graph partition %d on %s:%d", part, config.host, port)
    verification = verification_of(config) if config.verify else None
    if verification is not None:
        verification.start()
    wait_for_end(config.ready, {"ports": ports, "port": next(iter(ports.values()), None)})
    for server in servers.values():
        server.close()
    if verification is not None:
        verification.close()
        verification.check()


def verification_of(config: StoreConfig) -> Verification:
    """Verify this machine's files in the background; a damaged file ends the process."""

    def end(problem: str) -> None:
        if problem:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            config.verified.touch()

    manifest = load_manifest(config.graph)
    return Verification(config.graph, files_of(manifest, config.ports), end)


if __name__ == "__main__":
    sys.exit(main())
