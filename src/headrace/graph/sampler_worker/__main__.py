"""Run a sampler: `python -m headrace.graph.sampler_worker --config FILE`.

Standard input is the Unix socket of the trainer, unless the sampler listens for one. The process
ends when standard input closes (the parent has exited) or the trainer closes the connection.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time  # noqa: TID251 - the process entry point supplies the clock
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from headrace.core.errors import HeadraceError
from headrace.graph.loader.graph_view import PartitionedGraphView
from headrace.graph.sampler_worker.channels.shm import ShmSender, SubBatchSender, accept_trainer
from headrace.graph.sampler_worker.config import SamplerConfig
from headrace.graph.sampler_worker.graph_access import Caches, load_credentials, open_access, report
from headrace.graph.sampler_worker.pipeline import Pipeline
from headrace.graph.sampler_worker.schedule import interleave, schedule
from headrace.graph.sampler_worker.scoring import MAX_MODEL_BYTES, NewestModel, Scorer
from headrace.graph.sampler_worker.sub_batch_builder import SubBatchBuilder
from headrace.graph.sampling.remote_scores import RemoteScores
from headrace.linux.malloc import share_one_heap
from headrace.rpc.errors import StoreLostError
from headrace.rpc.reconnect import RetryBudget
from headrace.rpc.service_process import begin_process, call_after_parent, write_ready
from headrace.tracing.task_trace import SubBatchRecorder, TraceWriter

_HEARTBEAT_INTERVAL_S = 1.0

# Flushed before the process exits.
_RECORDERS: list[TraceWriter] = []


def main(arguments: list[str] | None = None) -> int:
    """Sample until the trainer needs no more batches."""
    module = "headrace.graph.sampler_worker"
    config, sender = begin_process(module, SamplerConfig, arguments, main.__doc__), None
    if config.is_remote:
        share_one_heap()
    models = NewestModel()
    try:
        sender = _connect_trainer(config, models)
        _work(config, sender, models)
    except HeadraceError as error:
        logging.error("%s: %s", config.name, error)
        if config.is_remote and sender is not None:
            # Stay alive until the trainer has polled the error.
            threading.Event().wait()
        return error.exit_code
    if config.is_remote:
        threading.Event().wait()
    return 0


def _connect_trainer(config: SamplerConfig, models: NewestModel) -> SubBatchSender:
    at = config.listen
    if at is None:
        return _join(config, models, socket.socket(fileno=0))
    call_after_parent(_end)
    if at.path is None:
        return _listen(config, models)
    connection = accept_trainer(at.path, lambda: write_ready(at.ready, {"port": None}))
    return _join(config, models, connection)


def _join(config: SamplerConfig, models: NewestModel, connection: socket.socket) -> SubBatchSender:
    """Connect to a trainer on this machine."""
    sender = ShmSender(connection, config.window * len(config.shards), _end, models.put)
    threading.Thread(target=_send_heartbeats, args=(sender,), daemon=True).start()
    return sender


def _listen(config: SamplerConfig, models: NewestModel) -> SubBatchSender:
    """Listen for a trainer on another machine."""
    from headrace.graph.sampler_worker.channels.rpc import RpcSender

    at = config.listen
    assert at is not None
    credentials = load_credentials(config)
    window = config.window * len(config.shards)
    limits, on_model = at.limits, None
    if config.scoring is not None:
        limits, on_model = replace(limits, max_request_bytes=MAX_MODEL_BYTES), models.put
    sender = RpcSender(credentials, window, at.host, at.port, _end, limits, on_model)
    write_ready(at.ready, {"port": sender.port})
    return sender


def _end() -> None:
    # Threads may block on a store, so exit without joining them.
    for recorder in _RECORDERS:
        recorder.flush()
    os._exit(0)


def _work(config: SamplerConfig, sender: SubBatchSender, models: NewestModel) -> None:
    recorder = None
    if config.trace is not None:
        _RECORDERS.append(TraceWriter(config.trace, config.task, time.monotonic))
        recorder = SubBatchRecorder(
            _RECORDERS[0], config.batches_per_epoch, time.thread_time, len(config.shards)
        )
    try:
        clock = None if recorder is None else time.monotonic
        access, caches = open_access(config, clock, _retry_budget(config))
        seeds = [np.load(shard.seeds) for shard in config.shards]
        builder = SubBatchBuilder(
            access, config, time.perf_counter, recorder, _scores(config, access, seeds, models)
        )
    except HeadraceError as error:
        sender.fail(error.problem, error.remedy, isinstance(error, StoreLostError))
        raise
    jobs = interleave(
        schedule(
            own,
            shard.seeds_per_iteration,
            config.batches_per_epoch,
            config.seed,
            shuffle=config.shuffle,
            first_epoch=config.first_epoch,
            first_batch=config.first_batch,
            num_epochs=config.num_epochs,
            ends=shard.ends,
        )
        for own, shard in zip(seeds, config.shards, strict=True)
    )
    threads = config.sampling_threads or (config.sampled_ahead if config.stores else 1)
    figures = _Figures(caches)
    try:
        Pipeline(builder, sender, config, threads, time.perf_counter, figures).run(jobs)
    finally:
        for each in _RECORDERS:
            each.flush()


def _scores(
    config: SamplerConfig,
    access: PartitionedGraphView,
    seeds: Sequence[np.ndarray],
    models: NewestModel,
) -> Callable[[], RemoteScores | None]:
    """Return the newest scores of remote nodes, if the sampler uses scores."""
    if config.scoring is None or not config.stores:
        return lambda: None
    return Scorer(config, config.scoring, access, np.concatenate(seeds), models).scores


def _retry_budget(config: SamplerConfig) -> RetryBudget | None:
    if not config.retry_budget_s:
        return None

    blocking: set[str] = set()

    def on_wait(store: str, waits: bool) -> None:
        (blocking.add if waits else blocking.discard)(store)
        logging.warning("%s %s", config.name, f"waits for {store}" if waits else f"reached {store}")
        if config.waits is not None:
            config.waits.write_text(", ".join(sorted(blocking)), encoding="utf-8")

    return RetryBudget(config.retry_budget_s, time.monotonic, on_wait)


class _Figures:
    """Cache metrics since the last sub-batch."""

    def __init__(self, caches: Caches) -> None:
        self._caches = caches
        self._previous: dict[str, float] = {}

    def __call__(self) -> dict[str, float]:
        if not self._caches:
            return {}
        total = report(self._caches)
        now: dict[str, float] = {
            "cache_hits": total.hits,
            "cache_misses": total.misses,
            "saved_bytes": total.saved_bytes,
            "fetched_bytes": total.fetched_bytes,
        }
        new = {name: value - self._previous.get(name, 0) for name, value in now.items()}
        self._previous = now
        return new


def _send_heartbeats(sender: ShmSender) -> None:
    while True:
        sender.beat()
        time.sleep(_HEARTBEAT_INTERVAL_S)


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    os._exit(code) if code else sys.exit(0)
