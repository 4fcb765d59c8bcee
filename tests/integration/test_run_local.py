"""`headrace run --local` with stores and samplers on Pubmed: it learns, it ends, it says why."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
pytest.importorskip("pyarrow")

from headrace.graph.build.partition import PartitionSpec, partition  # noqa: E402
from headrace.graph.format.partitioned_graph import open_graph  # noqa: E402
from headrace.graph.sources.resolve import open_source  # noqa: E402
from headrace.runtime.protocol.run_context import CONTEXT_VARIABLE, RunContext  # noqa: E402

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
needs_data = pytest.mark.skipif(
    not DATA.exists() and "CI" not in os.environ, reason="the datasets are not here"
)
pytestmark = [pytest.mark.integration, needs_data]

SCRIPT = ROOT / "examples" / "headrace_sage.py"
NUM_EPOCHS = 12


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pubmed") / "parts"
    source = open_source(str(DATA / "planetoid" / "pubmed.npz"), seed=0)
    partition(source, PartitionSpec((0.5, 0.5), "metis"), folder)
    return folder


def start(parts: Path, *options: str, epochs: int, script: Path = SCRIPT) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headrace", "run", "--local", str(script)]
    settings = ["--parts", str(parts), "--samplers", "2", *options]
    rest = ["--", str(parts), "--epochs", str(epochs)]
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, *settings, *rest], stdout=pipe, stderr=pipe, text=True)


def full_batch_accuracy(parts: Path) -> float:
    """What PyG learns of the whole graph, with the model and the steps of the example."""
    from torch.nn.functional import cross_entropy
    from torch_geometric.nn import GraphSAGE

    import headrace

    (data,) = headrace.NeighborLoader(parts, [-1], batch_size=19_717)
    train, test = (
        headrace.NeighborLoader(parts, [1], s).input_data.node for s in ("train", "test")
    )
    torch.manual_seed(0)
    model = GraphSAGE(500, 64, num_layers=2, out_channels=3, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(2 * NUM_EPOCHS):
        optimizer.zero_grad()
        cross_entropy(model(data.x, data.edge_index)[train], data.y[train]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        out = model(data.x, data.edge_index).argmax(-1)
    return float((out[test] == data.y[test]).float().mean())


class Watched:
    """A run whose messages are read until something is said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def until(self, text: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if text in line:
                return
        raise AssertionError("".join(self.lines))

    def pid_of(self, task: str) -> int:
        said = next(line for line in self.lines if line.startswith(task))
        found = re.search(r"process (\d+)", said)
        assert found is not None
        return int(found[1])


def tasks_of(trainer: int) -> set[int]:
    """The trainer and all that it started: one session."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, _group, session = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == trainer and state != "Z":
            found.add(int(stat.parent.name))
    return found


def wait_until_gone(find: Any, timeout_s: float = 60.0) -> None:
    end_s = time.monotonic() + timeout_s
    while find() and time.monotonic() < end_s:
        time.sleep(0.05)
    assert not find()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_logs_are_kept(err: str) -> None:
    found = re.search(r"logs of stores and samplers are in (\S+)", err)
    assert found is not None, err
    logs = {file.name: file.read_text() for file in Path(found[1]).iterdir()}
    assert all("serving graph partition" in logs[f"store-{part}.log"] for part in range(2)), logs
    shutil.rmtree(found[1])


@pytest.mark.campaign
def test_learns_pubmed_as_pyg_does(parts: Path) -> None:
    out, err = start(parts, "--json", epochs=NUM_EPOCHS).communicate(timeout=540)
    summary = json.loads(out)
    assert summary["exit_code"] == 0, err
    assert len(summary["reports"]) == NUM_EPOCHS
    assert summary["samples_per_s"] > 0
    learnt = max(report["accuracy"] for report in summary["reports"][-3:])
    assert learnt >= full_batch_accuracy(parts) - 0.03


@pytest.mark.campaign  # `unit/cli/commands/run/test_run.py` interrupts and kills shorter runs
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_run_ends(parts: Path, number: signal.Signals) -> None:
    run = Watched(start(parts, epochs=1000))
    run.until("epoch 1 ")
    trainer = run.pid_of("trainer")
    stores = [run.pid_of(f"store {part}") for part in range(2)]
    assert len(tasks_of(trainer)) == 3  # with two samplers
    run.process.send_signal(number)
    run.process.communicate(timeout=120)
    wait_until_gone(lambda: tasks_of(trainer))
    wait_until_gone(lambda: [pid for pid in stores if is_alive(pid)])
    if number == signal.SIGINT:
        assert run.process.returncode == 130


def test_a_store_that_is_gone_ends_the_run(parts: Path) -> None:
    run = Watched(start(parts, epochs=1000))
    run.until("epoch 1 ")
    trainer = run.pid_of("trainer")
    os.kill(run.pid_of("store 1"), signal.SIGKILL)
    err = run.process.communicate(timeout=60)[1]
    assert re.search(r"store 1 on \S+", err), err
    assert_logs_are_kept(err)
    assert run.process.returncode not in (0, 70)
    wait_until_gone(lambda: tasks_of(trainer))


@pytest.mark.campaign  # `test_feeding.py` kills samplers, without a run around them
def test_a_sampler_that_is_gone_is_an_error_of_the_script(parts: Path) -> None:
    run = Watched(start(parts, epochs=1000))
    run.until("epoch 1 ")
    trainer = run.pid_of("trainer")
    os.kill(max(tasks_of(trainer) - {trainer}), signal.SIGKILL)
    err = run.process.communicate(timeout=120)[1]
    assert re.search(r"sampler \d on \S+", err), err
    assert_logs_are_kept(err)
    assert run.process.returncode == 6
    wait_until_gone(lambda: tasks_of(trainer))


@pytest.mark.campaign  # as does a run of `unit/cli/commands/run/test_run.py`
def test_without_stores_parts_are_mapped(parts: Path) -> None:
    out, err = start(parts, "--stores", "0", "--json", epochs=2).communicate(timeout=120)
    assert json.loads(out)["exit_code"] == 0, err
    assert "store" not in err


@pytest.mark.campaign  # `test_feeding.py` has caches, without a run around them
def test_samplers_keep_rows_of_other_machines(parts: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
import sys, headrace
loader = headrace.NeighborLoader(
    sys.argv[1], [5, 5], "train", batch_size=20, shuffle=True, cache_bytes=1 << 24
)
for epoch in range(3):
    for batch in loader:
        pass
    headrace.report(epoch=epoch)
""")
    _, err = start(parts, epochs=3, script=script).communicate(timeout=120)
    rates = [int(found) for found in re.findall(r"cache (\d+)%", err)]
    assert rates, err
    assert rates[-1] > 0, err


def test_samplers_give_what_pyg_scripts_expect(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import headrace

    graph = open_graph(parts)
    (whole,) = headrace.NeighborLoader(graph, [0], batch_size=19_717)
    context = RunContext(machine="m1", messages=tmp_path / "nobody", num_samplers=2)
    (tmp_path / "context.json").write_text(context.model_dump_json())
    monkeypatch.setenv(CONTEXT_VARIABLE, str(tmp_path / "context.json"))
    nodes = torch.arange(19_000, 3, -100)
    settings: dict[str, Any] = {"batch_size": 33, "shuffle": True, "transform": lambda b: b}
    loader = headrace.NeighborLoader(graph, [5, 5], nodes, **settings)
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == len(loader) == 6
        taken = torch.cat([batch.input_id for batch in batches])
        assert sorted(taken.tolist()) == list(range(len(nodes)))
        for batch in batches:
            assert torch.equal(batch.n_id[: batch.batch_size], nodes[batch.input_id])
            assert torch.equal(batch.x, whole.x[batch.n_id])
            assert torch.equal(batch.y, whole.y[batch.n_id])
            assert sum(batch.num_sampled_edges) == batch.edge_index.shape[1]
    assert loader._prefetcher is not None
    loader._prefetcher.close()


@pytest.mark.campaign  # unit tests of the loader cover heterogeneous graphs
@pytest.mark.parametrize(
    ("example", "source", "figure", "least"),
    [
        ("headrace_rgcn.py", "gds_hetero/imdb", "accuracy", 0.6),
        ("headrace_links.py", "wn18rr/WN18RR.tar.gz", "auc", 0.8),
    ],
)
def test_examples_with_types_learn(
    tmp_path: Path, example: str, source: str, figure: str, least: float
) -> None:
    folder = tmp_path / "parts"
    partition(open_source(str(DATA / source), seed=0), PartitionSpec((0.5, 0.5), "metis"), folder)
    script = ROOT / "examples" / example
    out, err = start(folder, "--json", epochs=1, script=script).communicate(timeout=540)
    summary = json.loads(out)
    assert summary["exit_code"] == 0, err
    assert summary["reports"][0][figure] >= least
