"""Samplers that are lost, and those that take their place."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from headrace.graph.sampler_worker.channels.errors import PrefetchError, SamplerLostError
from headrace.graph.sampler_worker.channels.failover import FailoverReceiver, LostReceiver
from headrace.graph.sampler_worker.channels.shm import SubBatchReceiver
from headrace.graph.sampler_worker.channels.sub_batch import SubBatch

LOST = SamplerLostError("sampler0.1 on m1 is gone: it was ended by SIGKILL", "see its log")
NUM_BATCHES = 3


class Parts:
    """Hands over a number of parts from a position on, then fails."""

    def __init__(
        self, epoch: int, batch: int, num: int, error: Exception = LOST, num_shards: int = 1
    ) -> None:
        self._at, self._num_shards = (epoch * NUM_BATCHES + batch) * num_shards, num_shards
        self._left, self._error = num, error
        self.is_closed = False
        self.models: list[bytes] = []

    def receive(self) -> SubBatch:
        if not self._left:
            raise self._error
        self._left -= 1
        number, shard = divmod(self._at, self._num_shards)
        self._at += 1
        return SubBatch(*divmod(number, NUM_BATCHES), {}, {}, figures={"shard": shard})

    def send_model(self, model: bytes) -> None:
        self.models.append(model)

    def close(self) -> None:
        self.is_closed = True


class Others:
    """Starts samplers that hand over so many parts each."""

    def __init__(self, nums: Sequence[int | Exception]) -> None:
        self._nums: Iterator[int | Exception] = iter(nums)
        self.asked: list[tuple[int, int]] = []
        self.started: list[Parts] = []

    def __call__(self, epoch: int, batch: int, why: str) -> SubBatchReceiver:
        assert "is gone" in why
        self.asked.append((epoch, batch))
        num = next(self._nums)
        if isinstance(num, Exception):
            raise num
        self.started.append(Parts(epoch, batch, num))
        return self.started[-1]


def test_a_replacement_gets_the_newest_model() -> None:
    first, others = Parts(0, 0, 1), Others([5])
    receiver = healed(first, others)
    receiver.send_model(b"1")
    receiver.send_model(b"2")
    for _ in range(3):
        receiver.receive()
    assert first.models == [b"1", b"2"]
    assert others.started[0].models == [b"2"]
    LostReceiver(LOST).send_model(b"3")


def healed(
    first: SubBatchReceiver, others: Others, told: list[str] | None = None
) -> FailoverReceiver:
    notify = (lambda _: None) if told is None else told.append
    return FailoverReceiver(
        "sampler0.1 on m1", first, others, (0, 0), NUM_BATCHES, notify, pauses_s=(0.0, 0.0, 0.01)
    )


def take(receiver: FailoverReceiver, num: int) -> list[tuple[int, int]]:
    parts = [receiver.receive() for _ in range(num)]
    return [(part.epoch, part.batch) for part in parts]


def test_others_go_on_where_a_sampler_was_lost() -> None:
    first, others, told = Parts(0, 0, 2), Others([0, 1, 4, 9]), list[str]()
    receiver = healed(first, others, told)
    assert take(receiver, 8) == [divmod(n, NUM_BATCHES) for n in range(8)]
    assert others.asked == [(0, 2), (0, 2), (1, 0), (2, 1)]
    assert first.is_closed
    assert len(told) == 4
    assert "batch 2 of epoch 0" in told[0]


def test_parts_of_a_batch_that_was_begun_are_not_taken_twice() -> None:
    asked = []

    def replace(epoch: int, batch: int, why: str) -> SubBatchReceiver:
        asked.append((epoch, batch))
        return Parts(epoch, batch, 100, num_shards=2)

    first = Parts(0, 0, 5, num_shards=2)
    receiver = FailoverReceiver("s", first, replace, (0, 0), NUM_BATCHES, num_shards=2)
    parts = [receiver.receive() for _ in range(10)]
    assert [(p.epoch, p.batch, p.figures["shard"]) for p in parts] == [
        (*divmod(n // 2, NUM_BATCHES), n % 2) for n in range(10)
    ]
    assert asked == [(0, 2)]


def test_a_sampler_may_be_lost_before_it_is_reached() -> None:
    others = Others([5])
    assert take(healed(LostReceiver(LOST), others), 2) == [(0, 0), (0, 1)]
    assert others.asked == [(0, 0)]


def test_it_is_not_tried_for_ever() -> None:
    others = Others([0, 0, 0, 0])
    receiver = healed(Parts(0, 0, 1), others)
    receiver.receive()
    with pytest.raises(SamplerLostError, match="SIGKILL"):
        receiver.receive()
    assert others.asked == [(0, 1)] * 3


def test_one_that_cannot_be_started_is_tried_again() -> None:
    gone = SamplerLostError("sampler0.1 on m1 is gone: its shell does not answer", "wait")
    others = Others([gone, gone, 5])
    assert take(healed(Parts(0, 0, 1), others), 3) == [(0, 0), (0, 1), (0, 2)]
    assert others.asked == [(0, 1)] * 3


def test_a_mistake_is_not_made_again() -> None:
    others = Others([1])
    wrong = PrefetchError("sampler0.1 on m1: there is no column 'z'", "name another")
    with pytest.raises(PrefetchError, match="no column"):
        healed(Parts(0, 0, 0, wrong), others).receive()
    nobody = PrefetchError("nobody starts samplers", "start again")
    with pytest.raises(PrefetchError, match="nobody"):
        healed(Parts(0, 0, 0), Others([nobody])).receive()
    assert others.asked == []


def test_whoever_is_closed_asks_for_nobody() -> None:
    others = Others([5])
    receiver = healed(Parts(0, 0, 0), others)
    receiver.close()
    with pytest.raises(SamplerLostError):
        receiver.receive()
    assert others.asked == []


def test_a_sampler_that_starts_too_late_is_closed() -> None:
    started, closed = threading.Event(), threading.Event()
    other = Parts(0, 0, 5)

    def replace(epoch: int, batch: int, why: str) -> SubBatchReceiver:
        started.set()
        assert closed.wait(60)
        return other

    receiver = FailoverReceiver("s", Parts(0, 0, 0), replace, (0, 0), NUM_BATCHES)
    errors: list[Exception] = []

    def work() -> None:
        try:
            receiver.receive()
        except SamplerLostError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(60)
    receiver.close()
    closed.set()
    thread.join(60)
    assert errors
    assert other.is_closed
