"""Sampler processes, with and without stores: same batches, bounded memory, no hang, no rest."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.graph.sampler_worker.channels.errors import PrefetchError
from headrace.graph.sampler_worker.config import SamplerConfig
from headrace.graph.sampler_worker.prefetcher import Prefetcher
from headrace.graph.sampler_worker.schedule import batches_per_epoch, sampler_batch_size, schedule
from headrace.graph.sampling.neighbor_sampler import BatchKey
from headrace.graph.store.server import StoreServer
from headrace.graph.store.shard import open_shard
from headrace.rpc.credentials import Credentials, Secret
from tests.integration.store_service.store_process import running
from tests.support.local_sampling import local_sampler
from tests.support.sampler_processes import StartedPrefetcher, start_prefetcher
from tests.support.waiting import eventually, is_left, shared_memory
from tests.unit.graph.small_graphs import homogeneous, write

pytestmark = pytest.mark.integration
pytest.importorskip("torch_geometric")

NUM_NODES = 400
SEEDS = np.arange(0, NUM_NODES, 3)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, PartitionedGraph]:
    folder = tmp_path_factory.mktemp("graphs")
    source = homogeneous(NUM_NODES, 6000)
    for num_parts in (1, 2, 4):
        write(source, folder / str(num_parts), num_parts)
    return {num_parts: open_graph(folder / str(num_parts)) for num_parts in (1, 2, 4)}


def configs_of(
    graph: PartitionedGraph, num_samplers: int = 1, batch_size: int = 16, **changes: Any
) -> tuple[list[SamplerConfig], list[np.ndarray]]:
    """Samplers of one trainer, and their seeds: ranges of original ids."""
    seeds = np.array_split(SEEDS, num_samplers)
    num_batches = batches_per_epoch([len(own) for own in seeds], batch_size)
    settings: dict[str, Any] = {
        "graph": graph.folder,
        "machine": "m1",
        "node_type": "node",
        "seeds": "given",
        "batches_per_epoch": num_batches,
        "seed": 3,
        "fanouts": [[edge_type, [5, 4]] for edge_type in graph.edge_types],
    }
    configs = [
        SamplerConfig(
            **{
                **settings,
                "task": f"sampler {s}",
                "seeds_per_iteration": sampler_batch_size(batch_size, num_samplers, s),
                **changes,
            }
        )
        for s in range(num_samplers)
    ]
    return configs, seeds


@contextmanager
def with_stores(graph: PartitionedGraph, folder: Path) -> Iterator[dict[str, Any]]:
    """Stores of all parts but the first, and what samplers must know of them."""
    folder.mkdir()
    credentials = Credentials(Secret.random())
    credentials.save(folder / "keys")
    servers = [
        StoreServer(open_shard(graph, part), credentials) for part in range(1, graph.num_parts)
    ]
    try:
        yield reaching([server.port for server in servers], folder / "keys")
    finally:
        for server in servers:
            server.close()


def reaching(ports: list[int], keys: Path) -> dict[str, Any]:
    at = [
        {"part": p, "task": f"store {p}", "machine": "m7", "host": "127.0.0.1", "port": port}
        for p, port in enumerate(ports, 1)
    ]
    return {"stores": at, "credentials": keys, "tls": False}


def as_lists(batch: Any) -> tuple[Any, ...]:
    return (
        batch.n_id.tolist(),
        batch.edge_index.tolist(),
        batch.x.tolist(),
        batch.y.tolist(),
        batch.num_sampled_nodes,
        batch.num_sampled_edges,
    )


def epochs_of(prefetcher: Prefetcher, num_epochs: int) -> list[Any]:
    return [[as_lists(batch) for batch in prefetcher] for _ in range(num_epochs)]


def drain(prefetcher: Prefetcher) -> None:
    while True:
        for batch in prefetcher:
            assert batch.num_nodes > 0


def mapped_segments(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:headrace")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_batches_are_the_same_for_any_number_of_stores(
    graphs: dict[int, PartitionedGraph], tmp_path: Path
) -> None:
    seen = []
    for num_parts in (1, 2, 4):
        with start_prefetcher(*configs_of(graphs[num_parts]), time.perf_counter) as prefetcher:
            seen.append(epochs_of(prefetcher, 2))
    by_frequency = {"num_bytes": 6000}
    by_degree = {"num_bytes": 6000, "policy": "degree", "home": 0}
    for num_parts, cache in ((2, None), (2, by_degree), (4, None), (4, by_frequency)):
        graph = graphs[num_parts]
        with (
            with_stores(graph, tmp_path / str(len(seen))) as settings,
            start_prefetcher(
                *configs_of(graph, cache=cache, **settings), time.perf_counter
            ) as prefetcher,
        ):
            seen.append(epochs_of(prefetcher, 2))
            if cache is not None:
                assert prefetcher.report().cache_hit_rate > 0
                assert prefetcher.report().figures["saved_bytes"] > 0
    assert all(batches == seen[0] for batches in seen[1:])


def test_labor_batches_are_the_same_for_any_number_of_stores(
    graphs: dict[int, PartitionedGraph], tmp_path: Path
) -> None:
    configs, seeds = configs_of(graphs[1], labor=True)
    with start_prefetcher(configs, seeds, time.perf_counter) as prefetcher:
        local = epochs_of(prefetcher, 2)
    with (
        with_stores(graphs[4], tmp_path / "stores") as settings,
        start_prefetcher(
            *configs_of(graphs[4], labor=True, **settings), time.perf_counter
        ) as prefetcher,
    ):
        assert epochs_of(prefetcher, 2) == local


def test_parts_of_two_samplers_are_what_one_process_draws(
    graphs: dict[int, PartitionedGraph],
) -> None:
    graph = graphs[4]
    configs, seeds = configs_of(graph, num_samplers=2)
    sampler = local_sampler(graph)
    jobs = [
        list(schedule(own, config.seeds_per_iteration, len(SEEDS), config.seed, num_epochs=1))
        for config, own in zip(configs, seeds, strict=True)
    ]
    with start_prefetcher(configs, seeds, time.perf_counter) as prefetcher:
        for number, batch in enumerate(prefetcher):
            counts = []
            for own in jobs:
                new = graph.to_new("node", own[number].seeds)
                plain = sampler.sample(new, [5, 4], BatchKey(3, 0, number))
                counts.append(plain.num_sampled_nodes)
            assert batch.num_sampled_nodes == np.sum(counts, axis=0).tolist()
            expected = np.concatenate([own[number].seeds for own in jobs])
            assert batch.n_id[: batch.batch_size].tolist() == expected.tolist()
    assert number == len(prefetcher) - 1


@pytest.mark.campaign
def test_memory_does_not_grow(graphs: dict[int, PartitionedGraph]) -> None:
    configs, seeds = configs_of(graphs[2], num_samplers=2)

    def used_bytes(prefetcher: StartedPrefetcher) -> int:
        total = 0
        for pid in (os.getpid(), *(process.pid for process in prefetcher.processes)):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith(("RssAnon", "RssShmem")):
                    total += int(line.split()[1]) << 10
        return total

    with start_prefetcher(configs, seeds, time.perf_counter) as prefetcher:
        early_bytes = num = 0
        while num < 2000:
            for _ in prefetcher:
                num += 1
                if num == 200:
                    early_bytes = used_bytes(prefetcher)
        assert used_bytes(prefetcher) <= 1.05 * early_bytes
        # The window, the one in the sampler's hands, and two in the trainer's.
        assert mapped_segments(prefetcher.processes[0].pid) <= configs[0].window + 3


@pytest.mark.parametrize(
    "trial", [0, 1, *(pytest.param(trial, marks=pytest.mark.campaign) for trial in range(2, 8))]
)
def test_a_sampler_that_is_killed_is_named(graphs: dict[int, PartitionedGraph], trial: int) -> None:
    rng = np.random.default_rng(trial)
    shared = shared_memory()
    descriptors = len(os.listdir("/proc/self/fd"))
    configs, seeds = configs_of(graphs[2], num_samplers=2)
    victim, after = int(rng.integers(2)), int(rng.integers(0, 40))
    with start_prefetcher(configs, seeds, time.perf_counter) as prefetcher:
        pids = [process.pid for process in prefetcher.processes]
        for _ in range(after):
            next(iter(prefetcher))
        time.sleep(float(rng.random()) * 0.3)
        os.kill(pids[victim], signal.SIGKILL)
        with pytest.raises(PrefetchError, match=f"sampler {victim} on m1 is gone: .* SIGKILL"):
            drain(prefetcher)
    del prefetcher
    gc.collect()
    assert not any(is_alive(pid) for pid in pids)
    assert not is_left(shared)
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
    assert mapped_segments(os.getpid()) == 0


def test_a_sampler_that_hangs_is_named(graphs: dict[int, PartitionedGraph]) -> None:
    with start_prefetcher(*configs_of(graphs[1]), time.perf_counter) as prefetcher:
        next(iter(prefetcher))
        os.kill(prefetcher.processes[0].pid, signal.SIGSTOP)
        # Beside it, a timer of the same ten seconds.
        fired: list[float] = []
        timer = threading.Timer(10, lambda: fired.append(time.monotonic()))
        timer.start()
        with pytest.raises(PrefetchError, match="sampler 0 on m1 sent nothing for 10 s"):
            drain(prefetcher)
        timer.join()
        assert time.monotonic() - fired[0] < 5


def test_a_store_that_is_killed_is_named(
    graphs: dict[int, PartitionedGraph], tmp_path: Path
) -> None:
    with running(tmp_path / "store", graphs[2].folder, 1, tls=False) as store:
        store.client_credentials.save(tmp_path / "keys")
        settings = reaching([store.port], tmp_path / "keys")
        with start_prefetcher(*configs_of(graphs[2], **settings), time.perf_counter) as prefetcher:
            list(prefetcher)
            store.process.kill()
            with pytest.raises(PrefetchError, match="sampler 0 on m1: store 1 on m7"):
                drain(prefetcher)


def test_samplers_end_with_a_trainer_that_is_killed(
    graphs: dict[int, PartitionedGraph], tmp_path: Path
) -> None:
    shared = shared_memory()
    (config,), (seeds,) = configs_of(graphs[1])
    (tmp_path / "config").write_text(config.model_dump_json())
    np.save(tmp_path / "seeds.npy", seeds)
    program = f"""
import time, numpy as np
from pathlib import Path
from headrace.graph.sampler_worker.config import SamplerConfig
from headrace.rpc.service_process import load_config
from tests.support.sampler_processes import start_prefetcher
feed = start_prefetcher([load_config({str(tmp_path / "config")!r}, SamplerConfig)],
                        [np.load({str(tmp_path / "seeds.npy")!r})], time.perf_counter)
next(iter(feed))
print(feed.processes[0].pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        pid = int(trainer.stdout.readline())
        assert is_alive(pid)
        trainer.kill()
    assert eventually(lambda: not is_alive(pid))
    assert not is_left(shared)


def test_a_sampler_that_cannot_start_says_why(
    graphs: dict[int, PartitionedGraph], tmp_path: Path
) -> None:
    configs, seeds = configs_of(graphs[1])
    nowhere = configs[0].model_copy(update={"graph": tmp_path / "nowhere"})
    with (
        start_prefetcher([nowhere], seeds, time.perf_counter) as prefetcher,
        pytest.raises(PrefetchError, match=r"sampler 0 on m1: .*nowhere"),
    ):
        next(iter(prefetcher))
