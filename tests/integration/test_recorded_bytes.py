"""Bytes that a sampler and a trainer record are those that their sockets carried."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.sampler_worker.channels.rpc import RpcReceiver
from headrace.graph.sampler_worker.config import ListenAddress, SamplerConfig, StoreAddress
from headrace.graph.sampler_worker.prefetcher import Prefetcher
from headrace.profiling.trace_assembly import read_records
from headrace.rpc.call_meter import MeteredChannel
from headrace.rpc.client import RpcChannel
from headrace.rpc.config import TaskAddress
from headrace.rpc.credentials import Credentials, Secret
from headrace.tracing.task_trace import StepRecorder, TraceWriter
from tests.support.waiting import eventually
from tests.unit.graph.small_graphs import homogeneous, write

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("ss") is None, reason="ss counts the bytes of sockets"),
]
pytest.importorskip("torch_geometric")

NUM_BATCHES, SHARE = 12, 250
HEADER_BYTES = 66
"""Ethernet, IP and TCP with time stamps."""


def carried(port: int) -> tuple[float, float]:
    """Bytes sent to a port and received from it, by all who are connected, with headers."""
    command = ["ss", "-tinH", "state", "established", f"dport = :{port}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    sums = {
        name: sum(map(int, re.findall(rf"\b{name}:(\d+)", text)))
        for name in ("bytes_acked", "bytes_received", "segs_out", "segs_in")
    }
    return (
        sums["bytes_acked"] + HEADER_BYTES * sums["segs_out"],
        sums["bytes_received"] + HEADER_BYTES * sums["segs_in"],
    )


@contextmanager
def process(module: str, folder: Path, settings: dict[str, object]) -> Iterator[int]:
    """A store or sampler; the port on which it listens."""
    (folder / "config.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", module, "--config", str(folder / "config.json")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        try:
            ready = folder / "ready"
            assert eventually(lambda: ready.exists() or child.poll() is not None)
            yield json.loads(ready.read_text())["port"]
        finally:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(30)


def test_records_say_what_sockets_carried(tmp_path: Path) -> None:
    write(homogeneous(6000, 60_000), tmp_path / "graph", 2)
    graph, own = open_graph(tmp_path / "graph"), Credentials(Secret.random())
    own.save(tmp_path / "keys")
    np.save(tmp_path / "seeds.npy", np.arange(NUM_BATCHES * SHARE))
    with ExitStack() as stack:
        ports = []
        for part in range(2):
            folder = tmp_path / f"store{part}"
            folder.mkdir()
            settings: dict[str, object] = {
                "graph": str(graph.folder),
                "part": part,
                "credentials": str(tmp_path / "keys"),
                "tls": False,
                "ready": str(folder / "ready"),
            }
            ports.append(stack.enter_context(process("headrace.graph.store", folder, settings)))
        config = SamplerConfig(
            task="sampler0.0",
            graph=graph.folder,
            stores=tuple(
                StoreAddress(part=p, task=f"store{p}", machine="m", host="127.0.0.1", port=port)
                for p, port in enumerate(ports)
            ),
            credentials=tmp_path / "keys",
            tls=False,
            node_type="node",
            seeds=tmp_path / "seeds.npy",
            seeds_per_iteration=SHARE,
            batches_per_epoch=NUM_BATCHES,
            num_epochs=1,
            fanouts=tuple((edge_type, (8, 5)) for edge_type in graph.edge_types),
            listen=ListenAddress(ready=tmp_path / "ready"),
            trace=tmp_path / "trace-sampler",
        )
        settings = json.loads(config.model_dump_json())
        port = stack.enter_context(process("headrace.graph.sampler_worker", tmp_path, settings))
        steps = StepRecorder(TraceWriter(tmp_path / "trace-trainer", "trainer0", time.monotonic))
        record = steps.recording_from("sampler0.0", NUM_BATCHES)
        channel = RpcChannel(
            TaskAddress(task="sampler0.0", machine="m", host="127.0.0.1", port=port), own
        )
        receiver = RpcReceiver(MeteredChannel(channel, time.monotonic, lambda: record))
        prefetcher = stack.enter_context(Prefetcher([receiver], NUM_BATCHES, time.perf_counter, 1))
        for _batch in prefetcher:
            steps.begin()
            steps.end()

        def sampled() -> list[list[object]]:
            return read_records((tmp_path / "trace-sampler").read_bytes().splitlines())

        assert eventually(lambda: sum(r[0] == "exec" for r in sampled()) == NUM_BATCHES)
        counted = [carried(each) for each in (*ports, port)]
        steps.close()
    sums: dict[tuple[object, object], float] = defaultdict(float)
    records = sampled() + read_records((tmp_path / "trace-trainer").read_bytes().splitlines())
    for what, *rest in records:
        if what == "flow":
            sums[rest[0], rest[1]] += float(str(rest[3]))
    for store, (sent, received) in zip(("store0", "store1"), counted, strict=False):
        assert sums[store, "sampler0.0"] == pytest.approx(received, rel=0.03)
        assert sums["sampler0.0", store] == pytest.approx(sent, rel=0.03)
    assert sums["sampler0.0", "trainer0"] == pytest.approx(counted[2][1], rel=0.03)
    assert {rest[1] for what, *rest in records if what == "exec"} == set(range(NUM_BATCHES))
    served = [float(str(rest[3])) for what, *rest in records if what == "serve"]
    assert len(served) == 2 * NUM_BATCHES
    assert min(served) > 0
