from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace.graph.sampler_worker.channels.errors import PrefetchError
from headrace.graph.sampler_worker.channels.shm import (
    Segment,
    ShmReceiver,
    ShmSender,
    TrainerGoneError,
)
from headrace.graph.sampler_worker.channels.sub_batch import Key, SubBatch, arrays_in, place
from tests.support.sampler_processes import socket_pair
from tests.support.waiting import eventually, is_left, shared_memory

X = Key("node", "x", "node", "float32")


def send(sender: ShmSender, batch: int, num_rows: int) -> int:
    placed, num_bytes = place({X: (num_rows, 4)})
    slot, memory = sender.reserve(num_bytes)
    arrays_in(memory, placed)[X][...] = batch
    sender.send(slot, SubBatch(0, batch, {"node": [num_rows]}, {}), placed)
    return slot


def pair(window: int = 3, quiet_s: float = 10.0) -> tuple[ShmSender, ShmReceiver]:
    ours, theirs = socket_pair()
    return ShmSender(theirs, window), ShmReceiver(ours, "sampler 3 on m5", quiet_s)


def test_parts_arrive_in_shared_memory_and_slots_come_back() -> None:
    sender, receiver = pair()
    slots = set()
    for batch in range(50):
        slots.add(send(sender, batch, 100 + batch))
        part = receiver.receive()
        assert part.batch == batch
        assert np.array_equal(part.arrays[X], np.full((100 + batch, 4), batch, np.float32))
        assert part.arrays[X].flags.writeable
        del part
    sender.close()
    receiver.close()
    assert len(slots) <= 4  # the window, and one that the trainer holds


def test_models_reach_the_sampler_between_sub_batches() -> None:
    ours, theirs = socket_pair()
    models: list[bytes] = []
    sender = ShmSender(theirs, 3, on_model=models.append)
    receiver = ShmReceiver(ours, "sampler 3 on m5")
    # Larger than a packet of the socket.
    sent = [bytes([number]) * (1 << 20) for number in range(3)]
    for number, model in enumerate(sent):
        send(sender, number, 10)
        receiver.send_model(model)
        assert receiver.receive().batch == number
    assert eventually(lambda: len(models) == 3)
    assert models == sent
    sender.close()
    receiver.close()
    receiver.send_model(b"nobody listens")


def test_both_sides_see_the_same_memory() -> None:
    ours = Segment()
    ours.reserve(100)
    theirs = Segment(os.dup(ours.fd))
    ours.map(100)[:] = 7
    assert theirs.map(100).sum() == 700
    ours.reserve(5000)
    ours.map(5000)[4999] = 1
    seen = theirs.map(5000)
    assert seen[4999] == 1
    assert seen[0] == 7
    del ours, theirs
    assert seen[0] == 7


def test_a_batch_that_is_kept_is_not_overwritten() -> None:
    sender, receiver = pair(window=2)
    kept = []
    for batch in range(10):
        send(sender, batch, 10)
        kept.append(receiver.receive().arrays[X])
    assert [int(x[0, 0]) for x in kept] == list(range(10))
    sender.close()
    receiver.close()
    assert [int(x[9, 3]) for x in kept] == list(range(10))


def test_a_sampler_without_credit_waits() -> None:
    sender, receiver = pair(window=2)
    sent: list[int] = []

    def work() -> None:
        for batch in range(6):
            send(sender, batch, 10)
            sent.append(batch)

    def waits_after(num_sent: int) -> None:
        assert eventually(lambda: len(sent) == num_sent)
        # It could go on now, but must not.
        thread.join(0.1)
        assert len(sent) == num_sent

    thread = threading.Thread(target=work)
    thread.start()
    waits_after(2)
    assert receiver.receive().batch == 0
    waits_after(3)
    for batch in range(1, 6):
        assert receiver.receive().batch == batch
    thread.join()
    sender.close()
    receiver.close()


def test_a_sampler_whose_trainer_is_gone_stops_waiting() -> None:
    sender, receiver = pair(window=1)
    send(sender, 0, 10)
    receiver.close()
    with pytest.raises(TrainerGoneError):
        send(sender, 1, 10)
    sender.fail("nobody", "hears this")
    sender.close()


def test_errors_name_the_sampler() -> None:
    sender, receiver = pair()
    sender.fail("store 1 on m2 is gone", "start it")
    with pytest.raises(PrefetchError, match="sampler 3 on m5: store 1 on m2 is gone: start it"):
        receiver.receive()
    sender.close()
    with pytest.raises(PrefetchError, match="sampler 3 on m5 is gone: it closed the connection"):
        receiver.receive()
    receiver.close()


def test_last_words_are_heard_though_the_sampler_left_credits_unread() -> None:
    ours, theirs = socket_pair()
    receiver = ShmReceiver(ours, "sampler 3 on m5")
    theirs.send(b'{"problem": "no room", "remedy": "make some"}')
    ours.send(b'{"credits": 1}')
    theirs.close()
    with pytest.raises(PrefetchError, match="no room"):
        receiver.receive()
    with pytest.raises(PrefetchError, match="is gone"):
        receiver.receive()
    receiver.close()


def test_a_silent_sampler_is_taken_for_dead() -> None:
    sender, receiver = pair(quiet_s=0.05)
    sender.beat()
    with pytest.raises(PrefetchError, match=r"sampler 3 on m5 sent nothing for 0.05 s"):
        receiver.receive()
    sender.close()
    receiver.close()


def test_a_sampler_may_take_its_time_to_begin() -> None:
    ours, theirs = socket_pair()
    sender, receiver = ShmSender(theirs, 3), ShmReceiver(ours, "s", 0.05, starting_s=60)
    timer = threading.Timer(0.2, sender.beat)
    timer.start()
    with pytest.raises(PrefetchError, match=r"s sent nothing for 0.05 s"):
        receiver.receive()
    timer.join()
    sender.close()
    receiver.close()


def test_nothing_is_left() -> None:
    before = len(os.listdir("/proc/self/fd"))
    shared = shared_memory()
    sender, receiver = pair()
    for batch in range(5):
        send(sender, batch, 1000)
        receiver.receive()
    sender.close()
    receiver.close()
    del sender, receiver
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not is_left(shared)
    assert "memfd:headrace" not in Path("/proc/self/maps").read_text()
