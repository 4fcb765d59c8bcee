"""The whole path in one process: stages in threads, a real socket, real shared memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.graph.loader.graph_view import PartitionedGraphView
from headrace.graph.sampler_worker.channels.errors import PrefetchError
from headrace.graph.sampler_worker.channels.shm import ShmReceiver, ShmSender
from headrace.graph.sampler_worker.config import SamplerConfig
from headrace.graph.sampler_worker.pipeline import Pipeline
from headrace.graph.sampler_worker.prefetcher import Prefetcher
from headrace.graph.sampler_worker.schedule import (
    SampleTask,
    batches_per_epoch,
    sampler_batch_size,
    schedule,
)
from headrace.graph.sampler_worker.sub_batch_builder import SubBatchBuilder
from headrace.graph.sampling.neighbor_sampler import BatchKey
from headrace.rpc.errors import StoreError
from headrace.rpc.service_process import load_config
from tests.support.local_sampling import local_sampler
from tests.support.sampler_processes import socket_pair
from tests.unit.graph.small_graphs import NODE_TO_NODE, heterogeneous, homogeneous, write

pytest.importorskip("torch_geometric")

SEEDS = np.arange(0, 60, 2)

# Nobody beats here while kernels are compiled.
PATIENCE_S = 120.0


class Clock:
    """Every look takes a second."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += 1.0
        return self._now_s


def config_of(graph: PartitionedGraph, **changes: Any) -> SamplerConfig:
    settings: dict[str, Any] = {
        "graph": graph.folder,
        "node_type": graph.node_types[0],
        "seeds": Path("given"),
        "seeds_per_iteration": 8,
        "batches_per_epoch": 4,
        "seed": 7,
        "fanouts": tuple((edge_type, (4, 3)) for edge_type in graph.edge_types),
        "window": 2,
        "sampled_ahead": 3,
    }
    return SamplerConfig(**{**settings, **changes})


@contextmanager
def feeding(
    graph: PartitionedGraph, configs: list[SamplerConfig], seeds: list[np.ndarray]
) -> Iterator[Prefetcher]:
    threads, receivers = [], []
    for config, own in zip(configs, seeds, strict=True):
        ours, theirs = socket_pair()
        sender = ShmSender(theirs, config.window)
        maker = SubBatchBuilder(PartitionedGraphView(graph), config, Clock())
        pipeline = Pipeline(maker, sender, config, config.sampling_threads or 1, Clock())
        jobs = schedule(
            own,
            config.seeds_per_iteration,
            config.batches_per_epoch,
            config.seed,
            num_epochs=config.num_epochs,
        )
        thread = threading.Thread(target=_run, args=(pipeline, sender, jobs))
        thread.start()
        threads.append(thread)
        receivers.append(ShmReceiver(ours, config.name, PATIENCE_S))
    prefetcher = Prefetcher(receivers, configs[0].batches_per_epoch, Clock(), configs[0].num_epochs)
    try:
        yield prefetcher
    finally:
        prefetcher.close()
        for thread in threads:
            thread.join()


def _run(pipeline: Pipeline, sender: ShmSender, jobs: Iterator[SampleTask]) -> None:
    pipeline.run(jobs)
    sender.close()


def opened(folder: Path, num_parts: int = 2, **options: Any) -> PartitionedGraph:
    write(homogeneous(60, 500), folder / str(num_parts), num_parts, **options)
    return open_graph(folder / str(num_parts))


@pytest.mark.parametrize("num_threads", [1, 3])
def test_batches_are_what_one_process_draws(tmp_path: Path, num_threads: int) -> None:
    graph = opened(tmp_path)
    config = config_of(graph, num_epochs=2, sampling_threads=num_threads)
    sampler = local_sampler(graph)
    x = np.concatenate([graph.part(p).column("node", "x") for p in range(2)])
    y = np.concatenate([graph.part(p).column("node", "y") for p in range(2)])
    with feeding(graph, [config], [SEEDS]) as prefetcher:
        for epoch in range(2):
            for number, batch in enumerate(prefetcher):
                (job,) = [
                    job
                    for job in schedule(SEEDS, 8, 4, 7, num_epochs=2)
                    if (job.epoch, job.batch) == (epoch, number)
                ]
                new = graph.to_new("node", job.seeds)
                plain = sampler.sample(new, [4, 3], BatchKey(7, epoch, number))
                assert batch.n_id.tolist() == graph.to_original("node", plain.node).tolist()
                assert batch.edge_index.tolist() == [plain.row.tolist(), plain.col.tolist()]
                assert np.array_equal(batch.x.numpy(), x[plain.node])
                assert np.array_equal(batch.y.numpy(), y[new])
                assert batch.batch_size == len(job.seeds)
                assert batch.num_sampled_nodes == plain.num_sampled_nodes
                assert batch.num_sampled_edges == plain.num_sampled_edges
            assert number == 3
        assert list(prefetcher) == []
        report = prefetcher.report()
    assert report.num_batches == 8
    assert 0 < report.idle_share < 1
    assert {"sample_s", "fetch_s", "credit_s", "num_bytes"} <= report.figures.keys()


def test_batches_are_the_same_whatever_the_number_of_parts(tmp_path: Path) -> None:
    seen = []
    for num_parts in (1, 2, 4):
        graph = opened(tmp_path, num_parts)
        with feeding(graph, [config_of(graph, num_epochs=1)], [SEEDS]) as prefetcher:
            seen.append(
                [(b.n_id.tolist(), b.edge_index.tolist(), b.x.sum().item()) for b in prefetcher]
            )
    assert seen[0] == seen[1] == seen[2]


def test_two_samplers_make_one_batch(tmp_path: Path) -> None:
    import torch
    from torch_geometric.nn import SAGEConv
    from torch_geometric.utils import trim_to_layer

    graph = opened(tmp_path)
    seeds = [SEEDS[:15], SEEDS[15:]]
    num = batches_per_epoch([15, 15], 8)
    configs = [
        config_of(
            graph,
            seeds_per_iteration=sampler_batch_size(8, 2, s),
            batches_per_epoch=num,
            num_epochs=1,
        )
        for s in range(2)
    ]
    singles = []
    for config, own in zip(configs, seeds, strict=True):
        with feeding(graph, [config], [own]) as prefetcher:
            singles.append(list(prefetcher))
    torch.manual_seed(0)
    convs = [SAGEConv(5, 6), SAGEConv(6, 3)]

    def run(batch: Any, trim: bool) -> Any:
        x, edge_index = batch.x, batch.edge_index
        for i, conv in enumerate(convs):
            if trim:
                x, edge_index, _ = trim_to_layer(
                    i, batch.num_sampled_nodes, batch.num_sampled_edges, x, edge_index
                )
            x = conv(x, edge_index)
        return x[: batch.batch_size]

    with feeding(graph, configs, seeds) as prefetcher:
        for number, batch in enumerate(prefetcher):
            parts = [single[number] for single in singles]
            assert batch.batch_size == sum(part.batch_size for part in parts)
            assert batch.y.tolist() == torch.cat([part.y for part in parts]).tolist()
            alone = torch.cat([run(part, False) for part in parts])
            for trim in (False, True):
                assert torch.allclose(run(batch, trim), alone, atol=1e-5)
    assert number == num - 1


def test_a_graph_of_several_types(tmp_path: Path) -> None:
    write(heterogeneous(), tmp_path / "g", 2)
    graph = open_graph(tmp_path / "g")
    seeds = np.sort(np.random.default_rng(0).permutation(20)[:16])
    config = config_of(
        graph, node_type="paper", edge_ids=True, seeds_per_iteration=4, batches_per_epoch=2
    )
    configs = [config.model_copy(update={"num_epochs": 1})] * 2
    with feeding(graph, configs, [seeds[:8], seeds[8:]]) as prefetcher:
        for batch in prefetcher:
            assert batch["paper"].batch_size == batch["paper"].num_sampled_nodes[0]
            assert batch["author"].num_nodes == len(batch["author"].n_id)
            for edge_type in graph.edge_types:
                store = batch[edge_type]
                assert sum(store.num_sampled_edges) == store.edge_index.shape[1]
                src, _, dst = edge_type
                table = heterogeneous().edges[graph.edge_types.index(edge_type)]
                pairs = list(table.chunks())
                ends = [np.concatenate([pair[i] for pair in pairs]) for i in range(2)]
                row, col = store.edge_index
                assert batch[src].n_id[row].tolist() == ends[0][store.e_id].tolist()
                assert batch[dst].n_id[col].tolist() == ends[1][store.e_id].tolist()


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_halves_become_whole_unless_asked_otherwise(tmp_path: Path, stored: str) -> None:
    import torch

    graph = opened(tmp_path, features=stored)
    batches = []
    for keep in (False, True):
        config = config_of(graph, num_epochs=1, keep_dtype=keep)
        with feeding(graph, [config], [SEEDS]) as prefetcher:
            batches.append(list(prefetcher))
    for whole, half in zip(*batches, strict=True):
        assert whole.x.dtype == torch.float32
        assert half.x.dtype == getattr(torch, stored)
        assert torch.equal(whole.x, half.x.float())


def test_disjoint_trees_are_numbered_through(tmp_path: Path) -> None:
    graph = opened(tmp_path)
    configs = [config_of(graph, num_epochs=1, disjoint=True, seeds_per_iteration=4)] * 2
    with feeding(graph, configs, [SEEDS[:15], SEEDS[15:]]) as prefetcher:
        for batch in prefetcher:
            assert batch.batch[: batch.batch_size].tolist() == list(range(batch.batch_size))
            row, col = batch.edge_index
            assert batch.batch[row].equal(batch.batch[col])


def test_a_sampler_stays_within_its_window(tmp_path: Path) -> None:
    graph = opened(tmp_path)
    made: list[tuple[int, int]] = []

    class Counting(SubBatchBuilder):
        def sample(self, job: SampleTask) -> Any:
            made.append((job.epoch, job.batch))
            return super().sample(job)

    config = config_of(graph)
    ours, theirs = socket_pair()
    sender, receiver = ShmSender(theirs, 2), ShmReceiver(ours, "sampler", PATIENCE_S)
    maker = Counting(PartitionedGraphView(graph), config, Clock())
    pipeline = Pipeline(maker, sender, config, 1, Clock())
    thread = threading.Thread(target=_run, args=(pipeline, sender, schedule(SEEDS, 8, 4, 7)))
    thread.start()
    thread.join(0.5)
    # The window, what waits for credit, and what is sampled ahead with one in the worker's hands.
    assert len(made) <= 2 + 1 + config.sampled_ahead + 1
    for _ in range(20):
        receiver.receive()
    receiver.close()
    thread.join()


def test_a_store_that_dies_is_named_at_once(tmp_path: Path) -> None:
    graph = opened(tmp_path)

    class Dying(SubBatchBuilder):
        def sample(self, job: SampleTask) -> Any:
            if job.batch == 3:
                raise StoreError("store 1 on m2 is gone", "start it again")
            return super().sample(job)

    config = config_of(graph, machine="m4")
    ours, theirs = socket_pair()
    sender, receiver = ShmSender(theirs, 1), ShmReceiver(ours, config.name)
    pipeline = Pipeline(
        Dying(PartitionedGraphView(graph), config, Clock()), sender, config, 1, Clock()
    )
    failures: list[Exception] = []

    def work() -> None:
        try:
            pipeline.run(schedule(SEEDS, 8, 4, 7))
        except StoreError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    with Prefetcher([receiver], 4, Clock()) as prefetcher:
        with pytest.raises(PrefetchError, match="sampler 0 on m4: store 1 on m2 is gone"):
            list(prefetcher)
        with pytest.raises(PrefetchError, match="store 1 on m2 is gone"):
            next(iter(prefetcher))
    thread.join()
    assert len(failures) == 1


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    graph = opened(tmp_path)
    access = PartitionedGraphView(graph)
    with pytest.raises(SpecError, match="no node type 'paper'"):
        SubBatchBuilder(access, config_of(graph, node_type="paper"), Clock())
    wanted = ({"node_type": "node", "name": "z"},)
    with pytest.raises(SpecError, match="no column 'z'"):
        SubBatchBuilder(access, config_of(graph, columns=wanted), Clock())
    path = tmp_path / "config"
    path.write_text('{"graph": "g"}')
    with pytest.raises(SpecError, match="see SamplerConfig"):
        load_config(path, SamplerConfig)
    with pytest.raises(SpecError, match="cannot be read"):
        load_config(tmp_path / "none", SamplerConfig)
    assert NODE_TO_NODE in dict(config_of(graph).fanouts)
