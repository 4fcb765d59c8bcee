"""A real Prometheus watches a run on the testbed, trackers follow it: all agree with its trace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("torch")

from benchmarks.cluster_bed import Layout, make_plan
from headrace.api.files import save_plan
from headrace.core.trace import Trace
from headrace.observability.grafana import dashboard
from headrace.observability.trace_file import load_trace
from headrace.runtime.testbed import Testbed
from tests.e2e.cluster_runs import Run
from tests.leftovers import patient
from tests.unit.graph.small_graphs import homogeneous, write

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PORT = 9090
# Slow enough for Ray to tell its node several times: it does so every 10 s.
SCRIPT = """
import time

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE


def train_func(ctx):
    torch.manual_seed(5)
    model = GraphSAGE(5, 16, num_layers=2, out_channels=7)
    model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters(), lr=0.02))
    loader = ctx.loader("train", num_neighbors=[5, 5])
    num_seeds = 0
    for epoch in ctx.epochs(4):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            num_seeds += batch.batch_size
            time.sleep(0.25)
        ctx.report(epoch=epoch, loss=loss.item(), num_seeds=ctx.sum(num_seeds))
"""
ASKS = """
import json, sys, urllib.parse, urllib.request
for path, fields in json.load(sys.stdin):
    url = f"http://127.0.0.1:{sys.argv[1]}{path}?{urllib.parse.urlencode(fields)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        print(json.dumps(answer.read().decode()))
"""


class Prometheus:
    """Debian's Prometheus on the first machine of a testbed, which scrapes all of them."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self._bed = bed
        headrace = [sys.executable, "-m", "headrace", "dashboard", "--prometheus"]
        made = subprocess.run(bed.command("m0", headrace), stdout=subprocess.PIPE, check=True)
        config = yaml.safe_load(made.stdout)
        (scraped,) = config["scrape_configs"]
        assert len(scraped["static_configs"][0]["targets"]) == len(bed.hosts)
        config["global"]["scrape_interval"] = "1s"
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        words = ["prometheus", f"--config.file={folder / 'prometheus.yml'}"]
        words += [f"--storage.tsdb.path={folder / 'tsdb'}"]
        words += [f"--web.listen-address=127.0.0.1:{PORT}"]
        with (folder / "prometheus.log").open("wb") as log:
            command = bed.command("m0", words)
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(self, *questions: tuple[str, dict[str, Any]]) -> list[str]:
        words = self._bed.command("m0", [sys.executable, "-c", ASKS, str(PORT)])
        text = json.dumps(questions)
        done = subprocess.run(
            words, input=text, capture_output=True, text=True, timeout=120, check=False
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    def is_ready(self) -> bool:
        return bool(self.ask(("/-/ready", {})))

    def query(self, expression: str) -> dict[tuple[str, ...], float]:
        """Values by their labels, sorted by the labels' names; Ray's own labels are left out."""
        (answer,) = self.ask(("/api/v1/query", {"query": expression}))
        found = json.loads(answer)
        assert found["status"] == "success"
        return {
            tuple(value for _, value in sorted(each["metric"].items())): float(each["value"][1])
            for each in found["data"]["result"]
        }

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)


@pytest.fixture
def _can_watch() -> None:
    lacks = [name for name in ("prometheus",) if shutil.which(name) is None]
    lacks += [name for name in ("opencensus", "tensorboard", "mlflow") if find_spec(name) is None]
    if not lacks:
        return
    reason = f"these are not installed: {', '.join(lacks)}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def prometheus(_can_watch: None, testbed: Testbed, tmp_path: Path) -> Iterator[Prometheus]:
    watching = Prometheus(testbed, tmp_path)
    try:
        assert patient(watching.is_ready, 180), (tmp_path / "prometheus.log").read_text()
        yield watching
    finally:
        watching.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's and SQLAlchemy's own
def test_everybody_agrees_with_the_trace(
    testbed: Testbed, prometheus: Prometheus, tmp_path: Path
) -> None:
    save_plan(make_plan(Layout(), 12), tmp_path / "plan.json")
    write(homogeneous(2000, 9000, keep_ids=False), tmp_path / "parts", 4)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    options = ["--track", "tensorboard", "--track", "mlflow", "--checkpoint-every", "20"]
    run = Run(testbed, tmp_path, tmp_path / "code" / "train.py", options)
    code, _, err = run.end()
    assert code == 0, err
    lines = (run.folder / "reports.jsonl").read_text().splitlines()
    reports = [json.loads(line)["figures"] for line in lines]
    _prometheus_agrees(prometheus, run, reports)
    _tensorboard_agrees(run, reports)
    _mlflow_agrees(run, reports)
    _log_tells_who_and_where(run)


def _prometheus_agrees(prometheus: Prometheus, run: Run, reports: list[Any]) -> None:
    trace = load_trace(run.folder / "trace.npz")

    def last(name: str) -> str:
        """Values are gone soon after the run."""
        return f'last_over_time(ray_headrace_{name}{{run="{run.folder.name}"}}[30m])'

    num_iterations = max(n for (task,), n in _steps(trace).items() if task.startswith("trainer"))
    done = f"sum({last('iterations_total')})"
    # The last figures leave the driver when it ends; then they wait to be scraped.
    assert patient(lambda: prometheus.query(done) == {(): num_iterations}, 180), (
        prometheus.query(done),
        num_iterations,
    )
    assert num_iterations == run.status()["iterations"] > 40
    steps = prometheus.query(f"sum by (task) ({last('task_steps_total')})")
    assert steps == _steps(trace)
    moved = prometheus.query(f"sum by (source, target) ({last('link_bytes_total')})")
    expected = _moved(trace)
    assert len(expected) == 12
    assert moved == pytest.approx(expected, rel=1e-9)
    cards = prometheus.query(f"sum by (direction, machine) ({last('nic_bytes_total')})")
    for machine in ("m0", "m1", "m2", "m3"):
        received = sum(num for (_, target), num in expected.items() if target == machine)
        assert cards["in", machine] > received
    seeds = prometheus.query(f"sum({last('samples_total')})")
    assert seeds == {(): reports[-1]["num_seeds"]}
    checkpoints = [each for each in run.events("checkpoint") if "problem" not in each]
    made = prometheus.query(f"sum({last('checkpoints_total')})")
    assert made == {(): len(checkpoints)}
    figures = prometheus.query(f"max by (figure) ({last('figure')})")
    assert figures == pytest.approx({(k,): v for k, v in reports[-1].items()})
    _panels_show_something(prometheus, run)


def _panels_show_something(prometheus: Prometheus, run: Run) -> None:
    """Every expression of the dashboard, over the time of the run."""
    status = run.status()
    when = {"start": status["since_s"], "end": status["updated_s"] + 5, "step": 2}
    asked = []
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            words = target["expr"].replace("$run", run.folder.name)
            words = words.replace("$__rate_interval", "30s")
            asked.append((panel["title"], {"query": words, **when}))
    answers = prometheus.ask(*(("/api/v1/query_range", fields) for _, fields in asked))
    for (title, fields), answer in zip(asked, answers, strict=True):
        assert json.loads(answer)["data"]["result"], (title, fields)


def _steps(trace: Trace) -> dict[tuple[str, ...], float]:
    tasks = Counter(trace.task_names[task] for task in trace.executions.task)
    return {(name,): n for name, n in tasks.items() if name.startswith(("sampler", "trainer"))}


def _moved(trace: Trace) -> dict[tuple[str, ...], float]:
    names = np.array(trace.machine_names)[trace.task_machines]
    moved: dict[tuple[str, ...], float] = {}
    flows = trace.flows
    for src, dst, num_bytes in zip(flows.src, flows.dst, flows.num_bytes, strict=True):
        link = (str(names[src]), str(names[dst]))
        moved[link] = moved.get(link, 0.0) + float(num_bytes)
    return moved


def _tensorboard_agrees(run: Run, reports: list[Any]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(run.folder / "tensorboard"))
    read.Reload()
    losses = [(each.step, each.value) for each in read.Scalars("loss")]
    assert losses == [(each["epoch"], pytest.approx(each["loss"], rel=1e-6)) for each in reports]


def _mlflow_agrees(run: Run, reports: list[Any]) -> None:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run.runs / 'mlflow.db'}")
    (found,) = client.search_runs([client.search_experiments(order_by=["name"])[-1].experiment_id])
    assert (found.info.run_name, found.info.status) == (run.folder.name, "FINISHED")
    assert found.data.params["script"] == "train.py"
    losses = client.get_metric_history(found.info.run_id, "loss")
    assert [(each.step, each.value) for each in losses] == [
        (each["epoch"], each["loss"]) for each in reports
    ]


def _log_tells_who_and_where(run: Run) -> None:
    lines = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    where = {task["name"]: task["machine"] for task in run.status()["tasks"]}
    said = {(line["task"], line["machine"]) for line in lines if line["task"] != "driver"}
    assert {("store2", "m2"), ("store3", "m3")} <= said
    assert said <= set(where.items())
    assert {"at_s", "task", "machine", "level", "text"} == set(lines[0])
    assert "the run is over: done" in lines[-1]["text"]
