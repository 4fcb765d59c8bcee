"""A sampler that listens on a socket file for a trainer of its machine."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.sampler_worker.channels.errors import PrefetchError
from headrace.graph.sampler_worker.channels.shm import connect_sampler
from headrace.graph.sampler_worker.config import ListenAddress, SamplerConfig
from headrace.graph.sampler_worker.prefetcher import Prefetcher
from tests.support.sampler_processes import start_prefetcher
from tests.support.waiting import eventually
from tests.unit.graph.small_graphs import homogeneous, write

pytestmark = pytest.mark.integration
pytest.importorskip("torch_geometric")

SEEDS = np.arange(0, 200, 2)


@pytest.fixture
def config(tmp_path: Path) -> SamplerConfig:
    write(homogeneous(200, 2000), tmp_path / "graph", 2)
    np.save(tmp_path / "seeds.npy", SEEDS)
    edge_types = open_graph(tmp_path / "graph").edge_types
    return SamplerConfig(
        task="sampler1.0",
        machine="m9",
        graph=tmp_path / "graph",
        node_type="node",
        seeds=tmp_path / "seeds.npy",
        seeds_per_iteration=16,
        batches_per_epoch=7,
        fanouts=tuple((edge_type, (4, 3)) for edge_type in edge_types),
        listen=ListenAddress(path=tmp_path / "socket", ready=tmp_path / "ready"),
    )


@contextmanager
def started(config: SamplerConfig, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "config").write_text(config.model_dump_json())
    command = [
        sys.executable,
        "-m",
        "headrace.graph.sampler_worker",
        "--config",
        str(folder / "config"),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            assert eventually((folder / "ready").exists)
            yield process
        finally:
            process.kill()


def feed_of(folder: Path) -> Prefetcher:
    return Prefetcher(
        [connect_sampler(folder / "socket", "sampler1.0 on m9")], 7, time.perf_counter
    )


def drain(prefetcher: Prefetcher) -> None:
    while True:
        list(prefetcher)


def test_batches_come_over_the_file_and_the_sampler_ends_with_its_trainer(
    config: SamplerConfig, tmp_path: Path
) -> None:
    alone = config.model_copy(update={"listen": None})
    with start_prefetcher([alone], [SEEDS], time.perf_counter) as prefetcher:
        expected = [(batch.n_id.tolist(), batch.x.tolist()) for batch in prefetcher]
    with started(config, tmp_path) as process:
        assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
        with feed_of(tmp_path) as prefetcher:
            assert [(batch.n_id.tolist(), batch.x.tolist()) for batch in prefetcher] == expected
            assert len(list(prefetcher)) == 7
            with pytest.raises(PrefetchError, match="does not listen"):
                connect_sampler(tmp_path / "socket", "sampler1.0 on m9")
        assert process.wait(30) == 0


def test_a_sampler_that_dies_or_fails_is_named(config: SamplerConfig, tmp_path: Path) -> None:
    with started(config, tmp_path) as process, feed_of(tmp_path) as prefetcher:
        assert len(list(prefetcher)) == 7
        process.kill()
        with pytest.raises(PrefetchError, match=r"sampler1\.0 on m9 is gone"):
            drain(prefetcher)
    (tmp_path / "ready").unlink()
    (tmp_path / "seeds.npy").unlink()
    np.save(tmp_path / "seeds.npy", np.array([10**6]))
    with started(config, tmp_path) as process, feed_of(tmp_path) as prefetcher:
        with pytest.raises(PrefetchError, match=r"sampler1\.0 on m9"):
            list(prefetcher)
        assert process.wait(30) != 0


def test_a_sampler_ends_with_who_started_it(config: SamplerConfig, tmp_path: Path) -> None:
    with started(config, tmp_path) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0
