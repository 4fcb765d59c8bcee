"""Run a sampler as a process: `python -m headrace.graph.sampler_worker --config FILE`.

Its standard input is the Unix socket of its trainer; or, if it listens for one, anything. It ends
when that closes, which happens when who started it ends, however that ends; and when its trainer
has enough.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import sys
import threading
import time  # noqa: TID251 - where the process begins, its clock comes in
from pathlib import Path

import numpy as np

from headrace.core.errors import HeadraceError
from headrace.graph.sampler_worker.channels.shm import ShmSender, SubBatchSender, await_trainer
from headrace.graph.sampler_worker.config import SamplerConfig
from headrace.graph.sampler_worker.graph_access import Caches, load_credentials, open_access, report
from headrace.graph.sampler_worker.pipeline import Pipeline
from headrace.graph.sampler_worker.schedule import schedule, side_by_side
from headrace.graph.sampler_worker.sub_batch_builder import SubBatchBuilder
from headrace.linux.malloc import share_one_heap
from headrace.rpc.errors import StoreLostError
from headrace.rpc.reconnect import RetryBudget
from headrace.rpc.service_process import load_config
from headrace.tracing.task_trace import SubBatchRecorder, TraceWriter

_BEAT_S = 1.0

# What this process has to save, wherever it ends.
_RECORDERS: list[TraceWriter] = []


def main(arguments: list[str] | None = None) -> int:
    """Sample until the trainer has enough."""
    parser = argparse.ArgumentParser("headrace.graph.sampler_worker", description=main.__doc__)
    parser.add_argument("--config", required=True, type=Path, help="JSON file; see SamplerConfig")
    path = parser.parse_args(arguments).config
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    config, sender = load_config(path, SamplerConfig), None
    is_asked = config.listen is not None and config.listen.path is None
    if is_asked:
        share_one_heap()
    try:
        sender = _find_trainer(config)
        _work(config, sender)
    except HeadraceError as error:
        logging.error("%s: %s", config.name, error)
        if is_asked and sender is not None:
            # The trainer asks when it likes, and must learn why.
            threading.Event().wait()
        return error.exit_code
    if is_asked:
        threading.Event().wait()
    return 0


def _find_trainer(config: SamplerConfig) -> SubBatchSender:
    at = config.listen
    if at is None:
        return _join(config, socket.socket(fileno=0))
    threading.Thread(target=_wait_for_parent, daemon=True).start()
    if at.path is None:
        return _listen(config)
    return _join(config, await_trainer(at.path, lambda: _write_ready(at.ready, None)))


def _join(config: SamplerConfig, connection: socket.socket) -> SubBatchSender:
    """Reach a trainer on this machine."""
    sender = ShmSender(connection, config.window * len(config.lanes), on_gone=_end)
    threading.Thread(target=_beat, args=(sender,), daemon=True).start()
    return sender


def _listen(config: SamplerConfig) -> SubBatchSender:
    """Wait for a trainer on another machine."""
    from headrace.graph.sampler_worker.channels.rpc import RpcSender

    at = config.listen
    assert at is not None
    credentials = load_credentials(config)
    window = config.window * len(config.lanes)
    sender = RpcSender(credentials, window, at.host, at.port, _end, at.limits)
    _write_ready(at.ready, sender.port)
    return sender


def _write_ready(path: Path, port: int | None) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps({"port": port, "pid": os.getpid()}), encoding="ascii")
    partial.replace(path)


def _end() -> None:
    # Threads may wait for a store: the shortest end is the best.
    for recorder in _RECORDERS:
        recorder.flush()
    os._exit(0)


def _wait_for_parent() -> None:
    while os.read(sys.stdin.fileno(), 1 << 16):
        pass
    _end()


def _work(config: SamplerConfig, sender: SubBatchSender) -> None:
    recorder = None
    if config.trace is not None:
        _RECORDERS.append(TraceWriter(config.trace, config.task, time.monotonic))
        recorder = SubBatchRecorder(
            _RECORDERS[0], config.batches_per_epoch, time.thread_time, len(config.lanes)
        )
    try:
        clock = None if recorder is None else time.monotonic
        access, caches = open_access(config, clock, _retry_budget(config))
        maker = SubBatchBuilder(access, config, time.perf_counter, recorder)
        seeds = [np.load(lane.seeds) for lane in config.lanes]
    except HeadraceError as error:
        sender.fail(error.problem, error.remedy, isinstance(error, StoreLostError))
        raise
    jobs = side_by_side(
        schedule(
            own,
            lane.share,
            config.batches_per_epoch,
            config.seed,
            shuffle=config.shuffle,
            first_epoch=config.first_epoch,
            first_batch=config.first_batch,
            num_epochs=config.num_epochs,
            ends=lane.ends,
        )
        for own, lane in zip(seeds, config.lanes, strict=True)
    )
    threads = config.sampling_threads or (config.sampled_ahead if config.stores else 1)
    figures = _Figures(caches)
    try:
        Pipeline(maker, sender, config, threads, time.perf_counter, figures).run(jobs)
    finally:
        for each in _RECORDERS:
            each.flush()


def _retry_budget(config: SamplerConfig) -> RetryBudget | None:
    if not config.retry_budget_s:
        return None

    waited: set[str] = set()

    def tell(store: str, waits: bool) -> None:
        (waited.add if waits else waited.discard)(store)
        logging.warning("%s %s", config.name, f"waits for {store}" if waits else f"found {store}")
        if config.waits is not None:
            config.waits.write_text(", ".join(sorted(waited)), encoding="utf-8")

    return RetryBudget(config.retry_budget_s, time.monotonic, tell)


class _Figures:
    """What the caches did since the last part."""

    def __init__(self, caches: Caches) -> None:
        self._caches = caches
        self._said: dict[str, float] = {}

    def __call__(self) -> dict[str, float]:
        if not self._caches:
            return {}
        whole = report(self._caches)
        now: dict[str, float] = {
            "cache_hits": whole.hits,
            "cache_misses": whole.misses,
            "saved_bytes": whole.saved_bytes,
            "fetched_bytes": whole.fetched_bytes,
        }
        new = {name: value - self._said.get(name, 0) for name, value in now.items()}
        self._said = now
        return new


def _beat(sender: ShmSender) -> None:
    while True:
        sender.beat()
        time.sleep(_BEAT_S)


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    os._exit(code) if code else sys.exit(0)
