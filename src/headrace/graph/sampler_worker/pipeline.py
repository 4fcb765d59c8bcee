"""A sampler's stages, overlapped: many batches early, few late, in order at the end.

DistDGLv2, section 5.5: sampled batches are small and may be many; batches with their values are
large and bounded by the run-ahead window. Nothing waits between epochs. Threads are enough, since
kernels and copies let others work, and stores are asked without waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
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

_LOOK_S = 0.2

Filled = tuple[int, SubBatch, list[Placed]]
Figures = Callable[[], dict[str, float]]


class Pipeline:
    """Makes parts and hands them over until jobs end, something fails or nobody takes them.

    Args:
        maker: Makes parts.
        sender: Takes them.
        config: How far each stage may run ahead.
        sampling_threads: How many parts are sampled at the same time.
        clock: Seconds.
        figures: More to say with each part; called when it is sent.
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
        """Work until the end.

        Raises:
            Exception: What went wrong first, after the trainer was told.
        """
        samplers = ThreadPoolExecutor(self._sampling_threads, "sample")
        fetchers = ThreadPoolExecutor(self._config.fetching_threads, "fetch")
        threads = [
            threading.Thread(target=self._schedule, args=(jobs, samplers), name="schedule"),
            threading.Thread(target=self._fetch, args=(fetchers,), name="start fetches"),
            threading.Thread(target=self._hand_over, name="hand over"),
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
        """End soon; whoever waits for a credit is told by the sender."""
        self._ended.set()

    def _schedule(self, jobs: Iterable[SampleTask], samplers: ThreadPoolExecutor) -> None:
        with self._guarded():
            for job in jobs:
                self._put(self._sampled, samplers.submit(self._maker.sample, job))
            self._put(self._sampled, None)

    def _fetch(self, fetchers: ThreadPoolExecutor) -> None:
        """Give credits in order: else a later part could take the one an earlier needs."""
        with self._guarded():
            for sampled in self._take(self._sampled):
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
        part = draft.fill(arrays_in(memory, placed))
        figures["fetch_s"] = self._clock() - begin
        figures["num_bytes"] = float(len(memory))
        self._maker.end(draft, len(memory))
        with_figures = SubBatch(
            part.epoch, part.batch, part.num_sampled_nodes, part.num_sampled_edges, {}, figures
        )
        return slot, with_figures, placed

    def _hand_over(self) -> None:
        with self._guarded():
            for slot, part, placed in self._take(self._filled):
                assert isinstance(part.figures, dict)
                part.figures.update(self._figures())
                self._sender.send(slot, part, placed)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """The first failure of any stage ends all."""
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
        # At once, while other stages may still wait for a store; who waits for a credit is freed.
        self._sender.fail(*_said(error), isinstance(error, StoreLostError))
        self._sender.close()

    def _put(self, queue: Queue[T], item: T) -> None:
        while not self._ended.is_set():
            try:
                queue.put(item, timeout=_LOOK_S)
                return
            except Full:
                continue
        raise _EndedError

    def _take(self, queue: Queue[Future[T] | None]) -> Iterator[T]:
        while not self._ended.is_set():
            try:
                future = queue.get(timeout=_LOOK_S)
            except Empty:
                continue
            if future is None:
                return
            yield future.result()
        raise _EndedError


def _said(error: Exception) -> tuple[str, str]:
    if isinstance(error, HeadraceError):
        return error.problem, error.remedy
    return f"it failed with {type(error).__name__}: {error}", "see its log"


class _EndedError(Exception):
    """Another stage has failed, or the trainer has enough."""
