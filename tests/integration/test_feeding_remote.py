"""Parts that travel to a trainer on another machine, over a real connection."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.sampler_worker.channels.errors import PrefetchError
from headrace.graph.sampler_worker.channels.rpc import RpcReceiver, RpcSender
from headrace.graph.sampler_worker.channels.shm import TrainerGoneError
from headrace.graph.sampler_worker.channels.sub_batch import Key, SubBatch, arrays_in, place
from headrace.graph.sampler_worker.config import ListenAddress, SamplerConfig
from headrace.graph.sampler_worker.prefetcher import Prefetcher
from headrace.rpc.client import RpcChannel
from headrace.rpc.config import RpcLimits, TaskAddress
from headrace.rpc.credentials import Credentials, Secret
from headrace.rpc.errors import StoreError
from tests.support.sampler_processes import start_prefetcher
from tests.support.waiting import eventually
from tests.unit.graph.small_graphs import homogeneous, write

pytestmark = pytest.mark.integration
pytest.importorskip("torch_geometric")

X, Y = Key("node", "x", "node", "float32"), Key("node", "y", "seed", "int64")
OWN = Credentials(Secret.random())


def send(sender: RpcSender, batch: int) -> None:
    placed, num_bytes = place({X: (10 + batch, 3), Y: (batch,)})
    slot, memory = sender.reserve(num_bytes)
    for array in arrays_in(memory, placed).values():
        array[...] = batch
    sender.send(slot, SubBatch(1, batch, {"node": [batch]}, {}), placed)


def connect(sender: RpcSender, credentials: Credentials = OWN) -> RpcReceiver:
    address = TaskAddress(task="sampler 2", machine="m9", host="127.0.0.1", port=sender.port)
    return RpcReceiver(RpcChannel(address, credentials))


def test_parts_travel_in_order_within_the_window() -> None:
    gone = threading.Event()
    sender = RpcSender(OWN, window=2, on_gone=gone.set)
    sent: list[int] = []

    def work() -> None:
        try:
            for batch in range(1000):
                send(sender, batch)
                sent.append(batch)
        except TrainerGoneError:
            pass

    thread = threading.Thread(target=work)
    thread.start()
    receiver = connect(sender)
    assert eventually(lambda: len(sent) == 2)
    # It could go on now, but must not.
    thread.join(0.1)
    assert sent == [0, 1]
    for batch in range(20):
        part = receiver.receive()
        assert (part.epoch, part.batch) == (1, batch)
        assert np.array_equal(part.arrays[X], np.full((10 + batch, 3), batch, np.float32))
        assert part.arrays[Y].tolist() == [batch] * batch
    # The window, and what is on its way.
    assert len(sent) <= 20 + 2 + 3
    receiver.close()
    thread.join(60)
    assert not thread.is_alive()
    assert gone.wait(60)
    sender.shut_down()


def test_a_model_travels_to_a_sampler_with_scores_only() -> None:
    models: list[bytes] = []
    sender = RpcSender(
        OWN, window=2, limits=RpcLimits(max_request_bytes=1 << 22), on_model=models.append
    )
    receiver, stranger = connect(sender), connect(sender)
    model = bytes(range(256)) * 4096
    # A replaced sampler gets the model before it sends anything.
    receiver.send_model(model)
    assert eventually(lambda: bool(models))
    send(sender, 0)
    assert receiver.receive().batch == 0
    stranger.send_model(b"not the trainer")
    send(sender, 1)
    assert receiver.receive().batch == 1
    assert eventually(lambda: bool(models))
    assert models == [model]
    receiver.close()
    stranger.close()
    sender.shut_down()


def test_a_failure_follows_what_was_made() -> None:
    sender = RpcSender(OWN, window=2)
    send(sender, 1)
    sender.fail("store 1 on m2 is gone", "start it")
    receiver = connect(sender)
    assert receiver.receive().batch == 1
    for _ in range(2):
        with pytest.raises(PrefetchError, match=r"sampler 2 on m9.*store 1 on m2 is gone"):
            receiver.receive()
    receiver.close()
    sender.shut_down()


def test_a_sampler_that_ends_is_named() -> None:
    sender = RpcSender(OWN, window=2)
    receiver = connect(sender)
    sender.shut_down()
    with pytest.raises(PrefetchError, match="sampler 2 on m9"):
        receiver.receive()
    receiver.close()


def test_strangers_get_nothing() -> None:
    sender = RpcSender(OWN, window=2)
    with pytest.raises(StoreError, match="sampler 2 on m9 rejected this client"):
        connect(sender, Credentials(Secret.random()))
    address = TaskAddress(task="sampler 2", machine="m9", host="127.0.0.1", port=sender.port)
    channel = RpcChannel(address, OWN)
    for op in ("gather", "sample", "push", "status"):
        with pytest.raises(StoreError, match=op):
            channel.ask({"op": op}, (), 5.0).result()
    with pytest.raises(StoreError):
        channel.ask({"op": "next"}, [np.zeros(3)], 5.0).result()
    channel.close()
    sender.shut_down()


def test_a_sampler_process_feeds_another_machine(tmp_path: Path) -> None:
    # Rows are encoded on the way.
    write(homogeneous(200, 2000), tmp_path / "graph", 2, features="int8")
    graph, seeds = open_graph(tmp_path / "graph"), np.arange(0, 200, 2)
    OWN.save(tmp_path / "keys")
    np.save(tmp_path / "seeds.npy", seeds)
    config = SamplerConfig(
        task="sampler 2",
        machine="m9",
        graph=graph.folder,
        credentials=tmp_path / "keys",
        tls=False,
        node_type="node",
        seeds=tmp_path / "seeds.npy",
        seeds_per_iteration=16,
        batches_per_epoch=7,
        fanouts=tuple((edge_type, (4, 3)) for edge_type in graph.edge_types),
        listen=ListenAddress(ready=tmp_path / "ready"),
    )
    with start_prefetcher(
        [config.model_copy(update={"listen": None})], [seeds], time.perf_counter
    ) as prefetcher:
        expected = [(batch.n_id.tolist(), batch.x.tolist()) for batch in prefetcher]
    (tmp_path / "config").write_text(config.model_dump_json())
    command = [
        sys.executable,
        "-m",
        "headrace.graph.sampler_worker",
        "--config",
        str(tmp_path / "config"),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert eventually((tmp_path / "ready").exists)
        port = json.loads((tmp_path / "ready").read_text())["port"]
        channel = RpcChannel(
            TaskAddress(task="sampler 2", machine="m9", host="127.0.0.1", port=port), OWN
        )
        with Prefetcher([RpcReceiver(channel)], 7, time.perf_counter) as prefetcher:
            for _ in range(2):
                assert len(list(prefetcher)) == 7
        assert process.wait(240) == 0
    (tmp_path / "ready").unlink()
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert eventually((tmp_path / "ready").exists)
        port = json.loads((tmp_path / "ready").read_text())["port"]
        channel = RpcChannel(
            TaskAddress(task="sampler 2", machine="m9", host="127.0.0.1", port=port), OWN
        )
        with Prefetcher([RpcReceiver(channel)], 7, time.perf_counter) as prefetcher:
            seen = [(batch.n_id.tolist(), batch.x.tolist()) for batch in prefetcher]
            process.kill()
            with pytest.raises(PrefetchError, match="sampler 2 on m9"):
                drain(prefetcher)
    assert seen == expected


def drain(prefetcher: Prefetcher) -> None:
    while True:
        for batch in prefetcher:
            assert batch.num_nodes > 0
