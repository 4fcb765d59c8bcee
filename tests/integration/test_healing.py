"""Stores and samplers that are killed or silent, and come back: nobody sees it in the batches."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.graph.sampler_worker.channels.errors import PrefetchError
from headrace.graph.sampler_worker.config import SamplerConfig, SeedShard
from headrace.graph.sampler_worker.prefetcher import Prefetcher
from headrace.rpc.credentials import Credentials, Secret
from headrace.runtime.cluster.local_actors import LocalActors
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.protocol.sampler_requests import RequestServer
from headrace.runtime.protocol.trainer_messages import Failover, Inbox, Waiting
from headrace.runtime.trainer.sampler_client import Portion, start_samplers
from headrace.runtime.workers.sampler import SamplerActor
from tests.support.sampler_processes import start_prefetcher
from tests.support.waiting import eventually, is_left, shared_memory
from tests.unit.graph.small_graphs import homogeneous, write

pytestmark = pytest.mark.integration
pytest.importorskip("torch_geometric")

NUM_BATCHES = 9
SEEDS = np.arange(0, 400, 3)
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> PartitionedGraph:
    folder = tmp_path_factory.mktemp("graph")
    write(homogeneous(400, 6000), folder / "parts", 2)
    return open_graph(folder / "parts")


class Store:
    """A store that may be started again where it was.

    Args:
        folder: For its files.
        graph: Whose second part it serves.
    """

    def __init__(self, folder: Path, graph: PartitionedGraph) -> None:
        folder.mkdir()
        Credentials(Secret.random()).save(folder / "keys")
        self.folder, self.port, self._graph = folder, 0, graph
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, on the same port as before."""
        ready, config = self.folder / "ready", self.folder / "config"
        ready.unlink(missing_ok=True)
        settings = {
            "graph": str(self._graph.folder),
            "part": 1,
            "credentials": str(self.folder / "keys"),
            "ready": str(ready),
            "port": self.port,
            "tls": False,
        }
        config.write_text(json.dumps(settings))
        command = [sys.executable, "-m", "headrace.graph.store", "--config", str(config)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert eventually(ready.exists)
        said = json.loads(ready.read_text())
        self.port = said["port"] if "port" in said else said["ports"]["1"]
        return self.process

    def kill(self) -> None:
        """As a machine would: without a word."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()

    @property
    def settings(self) -> dict[str, Any]:
        """What samplers must know."""
        at = {"part": 1, "task": "store1", "machine": "m1", "host": "127.0.0.1", "port": self.port}
        return {"stores": [at], "credentials": self.folder / "keys", "tls": False}


@pytest.fixture
def store(graph: PartitionedGraph, tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store", graph)
    try:
        yield store
    finally:
        store.kill()


def config_of(graph: PartitionedGraph, **changes: Any) -> SamplerConfig:
    settings: dict[str, Any] = {
        "task": "sampler0.0",
        "machine": "m0",
        "graph": graph.folder,
        "node_type": "node",
        "seeds": "given",
        "seeds_per_iteration": 16,
        "batches_per_epoch": NUM_BATCHES,
        "seed": 3,
        "fanouts": [[edge_type, [5, 4]] for edge_type in graph.edge_types],
        "window": 2,
        **changes,
    }
    return SamplerConfig(**settings)


def as_lists(batch: Any) -> tuple[Any, ...]:
    labels = batch.y[: batch.batch_size].tolist()
    return (batch.n_id.tolist(), batch.edge_index.tolist(), batch.x.tolist(), labels)


def take(prefetcher: Prefetcher, num_epochs: int, at: dict[int, Callable[[], object]]) -> list[Any]:
    """Batches of some epochs; something happens after some of them."""
    seen: list[Any] = []
    for _ in range(num_epochs):
        for batch in prefetcher:
            seen.append(as_lists(batch))
            at.get(len(seen), lambda: None)()
    return seen


@pytest.fixture(scope="module")
def undisturbed(graph: PartitionedGraph) -> list[list[Any]]:
    """Batches of four epochs that nobody disturbs."""
    with start_prefetcher([config_of(graph)], [SEEDS], time.perf_counter) as prefetcher:
        return [take(prefetcher, 1, {}) for _ in range(4)]


def first(epochs: list[list[Any]], num: int) -> list[Any]:
    """Batches of the first epochs."""
    return [batch for epoch in epochs[:num] for batch in epoch]


def test_a_store_that_is_started_again_is_not_noticed(
    graph: PartitionedGraph, store: Store, undisturbed: list[list[Any]]
) -> None:
    config = config_of(graph, retry_budget_s=PATIENCE_S, **store.settings)

    def kill_and_start() -> None:
        store.kill()
        store.start()

    with start_prefetcher([config], [SEEDS], time.perf_counter) as prefetcher:
        assert take(prefetcher, 4, {5: kill_and_start, 20: kill_and_start}) == first(undisturbed, 4)


@pytest.mark.parametrize("silent_s", [2, pytest.param(10, marks=pytest.mark.campaign)])
def test_a_store_that_is_silent_is_waited_for(
    graph: PartitionedGraph,
    store: Store,
    undisturbed: list[list[Any]],
    tmp_path: Path,
    silent_s: float,
) -> None:
    waits = tmp_path / "waits"
    config = config_of(graph, retry_budget_s=PATIENCE_S, waits=waits, **store.settings)
    said: list[str] = []

    def silence() -> None:
        store.process.send_signal(signal.SIGSTOP)

        def wake() -> None:
            time.sleep(silent_s)
            eventually(lambda: waits.exists() and waits.read_text() != "", PATIENCE_S / 2)
            said.append(waits.read_text())
            store.process.send_signal(signal.SIGCONT)

        threading.Thread(target=wake).start()

    with start_prefetcher([config], [SEEDS], time.perf_counter) as prefetcher:
        assert take(prefetcher, 3, {4: silence}) == first(undisturbed, 3)
        assert said == ["store1 on m1"]
        assert eventually(lambda: waits.read_text() == "")


def test_patience_with_a_store_ends(graph: PartitionedGraph, store: Store) -> None:
    config = config_of(graph, retry_budget_s=5.0, **store.settings)
    with start_prefetcher([config], [SEEDS], time.perf_counter) as prefetcher:
        list(prefetcher)
        store.process.kill()
        with pytest.raises(PrefetchError, match=r"store1 on m1 has not answered for 5 s"):
            take(prefetcher, 99, {})


class Shells:
    """Answers a trainer as its shell does, with the shell of its sampler.

    Args:
        graph: All parts.
        store: Asked for the part that is not here.
        far: Whether the sampler is reached as on another machine.
    """

    def __init__(self, graph: PartitionedGraph, store: Store, far: bool) -> None:
        self.sampler = SamplerActor("sampler0.0", "m0", LocalActors("m0"))
        self.sampler.address = "127.0.0.1"
        self.asked: list[dict[str, Any]] = []
        self.kills_first = False
        self._trainer_machine = "m1" if far else "m0"
        settings = {**store.settings, "graph": str(graph.folder)}
        del settings["credentials"]
        self.sampler.prepare(settings, (store.folder / "keys").read_bytes(), {})

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start a sampler, or one in another's place."""
        self.asked.append(request)
        if request["kind"] == "start_samplers":
            (config,), (seeds,) = request["configs"], request["seeds"]
            self.sampler.begin(config, Path(seeds).read_bytes(), None, self._trainer_machine)
            if self.kills_first:
                self.kill()
                child = self.sampler._process
                assert child is not None
                assert eventually(lambda: child.code is not None)
                # A sampler from a warm process may listen before the signal arrives.
                (self.sampler.folder / f"ready-{self.sampler._begun}").unlink(missing_ok=True)
        else:
            assert request["sampler"] == 0
            self.sampler.begin_again(request["epoch"], request["batch"], request["why"])
        assert eventually(lambda: self.sampler.place() is not None)
        place = self.sampler.place()
        assert place is not None
        return {"places": [place]}

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Do this to the sampler that works now."""
        pid = self.sampler.state().pid
        assert pid is not None
        os.kill(pid, number)


@contextmanager
def running(
    folder: Path,
    graph: PartitionedGraph,
    store: Store,
    retry_budget_s: float = PATIENCE_S,
    far: bool = False,
    kills_first: bool = False,
) -> Iterator[tuple[Shells, Inbox, Prefetcher]]:
    """A trainer's feed whose sampler somebody else starts."""
    from headrace.graph.loader.pyg_stores import find_access

    folder.mkdir()
    actors, inbox = Shells(graph, store, far), Inbox(folder / "messages")
    actors.kills_first = kills_first
    server = RequestServer(folder / "ask", actors.answer)
    run = RunContext(
        machine="m0",
        messages=folder / "messages",
        parts=graph.folder,
        credentials=store.folder / "keys",
        requests=folder / "ask",
        samplers=("sampler0.0",),
        window=2,
        retry_budget_s=retry_budget_s,
    )
    fanouts = {edge_type: [5, 4] for edge_type in graph.edge_types}
    try:
        with start_samplers(
            run,
            find_access(graph),
            graph.folder,
            "node",
            [Portion(16, (), SEEDS)],
            NUM_BATCHES,
            fanouts,
            {"seed": 3},
        ) as prefetcher:
            yield actors, inbox, prefetcher
    finally:
        server.close()
        inbox.close()
        actors.sampler.close()


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
def test_a_sampler_that_is_killed_is_replaced(
    graph: PartitionedGraph,
    store: Store,
    undisturbed: list[list[Any]],
    tmp_path: Path,
    far: bool,
) -> None:
    shared = shared_memory()
    expected = first(undisturbed, 4)
    with running(tmp_path / "run", graph, store, far=far, kills_first=True) as (
        actors,
        inbox,
        prefetcher,
    ):

        def kill_both() -> None:
            actors.kill()
            store.kill()
            store.start()

        assert take(prefetcher, 4, {4: actors.kill, 12: kill_both, 30: actors.kill}) == expected
        state = actors.sampler.state()
        # One more than was asked for: the first was gone before it listened.
        assert state.restarts == len(actors.asked) >= 3
        assert "is gone" in state.why
        told = [message for message in inbox.receive(0) if isinstance(message, Failover)]
        assert len(told) == len(actors.asked) - 1
        assert "starting a replacement" in told[0].text
    assert not is_left(shared)


def test_a_silent_sampler_is_replaced_and_a_lasting_fault_is_reported(
    graph: PartitionedGraph, store: Store, undisturbed: list[list[Any]], tmp_path: Path
) -> None:
    with running(tmp_path / "run", graph, store) as (actors, inbox, prefetcher):
        assert take(prefetcher, 2, {3: partial(actors.kill, signal.SIGSTOP)}) == first(
            undisturbed, 2
        )
        assert [request["kind"] for request in actors.asked] == [
            "start_samplers", "replace_sampler",
        ]  # fmt: skip
        # Ten seconds without a batch, but not without a word.
        waits = [m for m in inbox.receive(0) if isinstance(m, Waiting) and m.is_waiting]
        assert waits[0].task == "sampler0.0 on m0"
        actors.sampler._settings["graph"] = str(tmp_path / "nowhere")
        actors.kill()
        with pytest.raises(PrefetchError, match=r"sampler0\.0 on m0: .*nowhere"):
            take(prefetcher, 99, {})
        assert len(actors.asked) == 3


def test_lanes_make_the_same_batches_on_fewer_samplers(
    graph: PartitionedGraph, store: Store, tmp_path: Path
) -> None:
    seeds = np.array_split(SEEDS, 3)
    shards = []
    for number, (own, num_seeds) in enumerate(zip(seeds, (5, 6, 5), strict=True)):
        np.save(tmp_path / f"{number}.npy", own)
        shards.append(
            SeedShard(seeds=tmp_path / f"{number}.npy", seeds_per_iteration=num_seeds, ends=(2, 2))
        )

    def config(*shards: SeedShard) -> SamplerConfig:
        first, *further = shards
        own = {
            "seeds_per_iteration": first.seeds_per_iteration,
            "ends": first.ends,
            "further": further,
        }
        return config_of(graph, trace=tmp_path / "trace", **own, **store.settings)

    seen = []
    for groups in ([[0], [1], [2]], [[0, 1], [2]], [[0, 1, 2]]):
        configs = [config(*(shards[shard] for shard in group)) for group in groups]
        with start_prefetcher(
            configs, [seeds[group[0]] for group in groups], time.perf_counter
        ) as prefetcher:
            seen.append(take(prefetcher, 2, {}))
            assert prefetcher.report().num_batches == 2 * NUM_BATCHES
    assert seen[1] == seen[0]
    assert seen[2] == seen[0]
    records = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    taken = [record[2] for record in records if record[0] == "exec"]
    # Three samplers, then two, then one: each says once what an iteration took.
    assert taken.count(0) == taken.count(7) == 6


def test_without_patience_a_lost_sampler_ends_the_feed(
    graph: PartitionedGraph, store: Store, tmp_path: Path
) -> None:
    with running(tmp_path / "run", graph, store, retry_budget_s=0.0) as (actors, _, prefetcher):
        list(prefetcher)
        actors.kill()
        with pytest.raises(PrefetchError, match=r"sampler0\.0 on m0 is gone"):
            take(prefetcher, 99, {})
        assert len(actors.asked) == 1
