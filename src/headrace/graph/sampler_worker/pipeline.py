"""Pipeline of a sampler: sample, fetch features, send in order.

DistDGLv2, section 5.5: sampled sub-batches are small and may be many; those with features are large
and bounded by the run-ahead window. There is no barrier between epochs. Threads suffice, since
kernels and copies release the GIL and store requests do not block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty, Full, Queue
from typing import TypeVar

import numpy as np

from headrace.core.errors import HeadraceError
from headrace.graph.sampler_worker.channels.shm import SubBatchSender, TrainerGoneError
from headrace.graph.sampler_worker.channels.sub_batch import Placed, SubBatch, arrays_in, place
from headrace.graph.sampler_worker.config import SamplerConfig
from headrace.graph.sampler_worker.schedule import SampleTask
from headrace.graph.sampler_worker.sub_batch_builder import (
    Clock,
    SampledSubBatch,
    SubBatchBuilder,
    SubBatchDraft,
)
from headrace.rpc.errors import StoreLostError

T = TypeVar("T")

_POLL_INTERVAL_S = 0.2

Filled = tuple[int, SubBatch, list[Placed]]
Figures = Callable[[], dict[str, float]]


class Pipeline:
    """Builds and sends sub-batches until tasks end, a stage fails or the trainer disconnects.

    `figures` returns additional metrics of a sub-batch and is called when it is sent.
    """

    def __init__(
        self,
        maker: SubBatchBuilder,
        sender: SubBatchSender,
        config: SamplerConfig,
        sampling_threads: int,
        clock: Clock,
        figures: Figures = dict,
    ) -> None:
        self._maker = maker
        self._sender = sender
        self._config = config
        self._sampling_threads = sampling_threads
        self._clock = clock
        self._figures = figures
        self._failure: Exception | None = None
        self._failing = threading.Lock()
        self._ended = threading.Event()
        self._sampled: Queue[Future[SampledSubBatch] | None] = Queue(config.sampled_ahead)
        self._filled: Queue[Future[Filled] | None] = Queue(config.fetching_threads)

    def run(self, jobs: Iterable[SampleTask]) -> None:
        """Run until the end; raise the first failure after the trainer was notified."""
        samplers = ThreadPoolExecutor(self._sampling_threads, "sample")
        fetchers = ThreadPoolExecutor(self._config.fetching_threads, "fetch")
        threads = [
            threading.Thread(target=self._schedule, args=(jobs, samplers), name="schedule"),
            threading.Thread(target=self._fetch, args=(fetchers,), name="start fetches"),
            threading.Thread(target=self._send, name="send"),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for pool in (samplers, fetchers):
            pool.shutdown(cancel_futures=True)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop soon; the sender releases threads that wait for a credit."""
        self._ended.set()

    def _schedule(self, jobs: Iterable[SampleTask], samplers: ThreadPoolExecutor) -> None:
        with self._guarded():
            for job in jobs:
                self._put(self._sampled, samplers.submit(self._maker.sample, job))
            self._put(self._sampled, None)

    def _fetch(self, fetchers: ThreadPoolExecutor) -> None:
        """Reserve slots in order, so that no later sub-batch takes an earlier one's credit."""
        with self._guarded():
            for sampled in self._drain(self._sampled):
                draft = self._maker.start(sampled)
                placed, num_bytes = place(draft.shapes)
                begin = self._clock()
                slot, memory = self._sender.reserve(num_bytes)
                waited_s = self._clock() - begin
                figures = {"sample_s": sampled.seconds, "credit_s": waited_s}
                self._put(
                    self._filled,
                    fetchers.submit(self._fill, draft, slot, memory, placed, figures),
                )
            self._put(self._filled, None)

    def _fill(
        self,
        draft: SubBatchDraft,
        slot: int,
        memory: np.ndarray,
        placed: list[Placed],
        figures: dict[str, float],
    ) -> Filled:
        begin = self._clock()
        sub_batch = draft.fill(arrays_in(memory, placed))
        figures["fetch_s"] = self._clock() - begin
        num_bytes = len(memory) + sum(each.rows.nbytes for each in sub_batch.encoded)
        figures["num_bytes"] = float(num_bytes)
        self._maker.end(draft, num_bytes - draft.num_saved_bytes)
        with_figures = replace(sub_batch, arrays={}, figures=figures)
        return slot, with_figures, placed

    def _send(self) -> None:
        with self._guarded():
            for slot, sub_batch, placed in self._drain(self._filled):
                assert isinstance(sub_batch.figures, dict)
                sub_batch.figures.update(self._figures())
                self._sender.send(slot, sub_batch, placed)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Stop all stages at the first failure."""
        try:
            yield
        except _EndedError:
            pass
        except TrainerGoneError:
            self._ended.set()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        with self._failing:
            if self._ended.is_set():
                return
            self._failure = error
            self._ended.set()
        # Immediately: other stages may block on a store. Closing releases waits for a credit.
        self._sender.fail(*_describe(error), isinstance(error, StoreLostError))
        self._sender.close()

    def _put(self, queue: Queue[T], item: T) -> None:
        while not self._ended.is_set():
            try:
                queue.put(item, timeout=_POLL_INTERVAL_S)
                return
            except Full:
                continue
        raise _EndedError

    def _drain(self, queue: Queue[Future[T] | None]) -> Iterator[T]:
        while not self._ended.is_set():
            try:
                future = queue.get(timeout=_POLL_INTERVAL_S)
            except Empty:
                continue
            if future is None:
                return
            yield future.result()
        raise _EndedError


def _describe(error: Exception) -> tuple[str, str]:
    if isinstance(error, HeadraceError):
        return error.problem, error.remedy
    return f"it failed with {type(error).__name__}: {error}", "check its log"


class _EndedError(Exception):
    """Another stage has failed, or the trainer has disconnected."""
