"""One run of a plan with everything that a run may have, which many tests look at.

Three trainers with two samplers each, of unequal seeds, and two parameter servers, on four
machines, with checkpoints, two trackers and a Prometheus. While it trains, strangers try to get in
everywhere and the machines' links are read; then it ends by itself.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from headrace.api.graph import partition
from headrace.core.trace import Trace
from headrace.testbed import Testbed
from tests.e2e.ports import Seen, in_files, look
from tests.e2e.prometheus import Prometheus
from tests.support.cluster_bed import Layout, Run, events, make_plan, processes, trace_of
from tests.support.cluster_checks import Snapshot, left_over, snapshot
from tests.support.waiting import LIMIT_S, eventually

CONFIG = {
    "task": "gradients", "features": 512, "classes": 16, "width": 8, "fanouts": [10, 5],
    "by_steps": True, "pause_s": 0.02,
}  # fmt: skip
SEEDS = (1, 2, 3, 4, 5, 6)
SERVERS = ("m0", "m3")
GRAPH = "generated:nodes=4e3,edges=4e4,features=512"
BATCH_SIZE = 126
WINDOW = 100
"""Iterations between two looks at the links."""

OPTIONS = ("--track", "tensorboard", "--track", "mlflow", "--checkpoint-every", "20")


@dataclass(frozen=True)
class PlannedRun:
    """A run that is over, and what was seen of it.

    Attributes:
        run: As it was started.
        graph: Of four parts.
        prometheus: Still there.
        seen: What strangers saw while it trained.
        iterations: Done before and after that.
        snapshots: Processes and links at two moments while it trained.
        folder: Of the run.
        end: Its exit code, and what it told the terminal.
        left: Processes that it left behind.
    """

    run: Run
    graph: Path
    prometheus: Prometheus
    seen: Seen
    iterations: tuple[int, int]
    snapshots: tuple[Snapshot, Snapshot]
    folder: Path
    end: tuple[int, str]
    left: list[str]

    @cached_property
    def trace(self) -> Trace:
        return trace_of(self.folder)

    @property
    def status(self) -> dict[str, Any]:
        return self.run.status()

    @property
    def reports(self) -> list[dict[str, Any]]:
        lines = (self.folder / "reports.jsonl").read_text().splitlines()
        return [json.loads(line)["figures"] for line in lines]

    @property
    def gradients(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "gradients-0.json").read_text())
        return found

    def events(self, kind: str) -> list[dict[str, Any]]:
        return events(self.folder, kind)


def check_can_watch() -> None:
    """Skip without Prometheus and trackers; fail in CI."""
    lacks = [name for name in ("prometheus",) if shutil.which(name) is None]
    lacks += [name for name in ("opencensus", "tensorboard", "mlflow") if find_spec(name) is None]
    if lacks:
        reason = f"these are not installed: {', '.join(lacks)}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


@contextmanager
def planned_run(testbed: Testbed, scratch: Path) -> Iterator[PlannedRun]:
    """Run it; its Prometheus lives until the end of the block."""
    partition(GRAPH, scratch / "parts", 4)
    plan = make_plan(Layout(servers=SERVERS, seeds=SEEDS), BATCH_SIZE)
    until = scratch / "until"  # it trains until there is this file
    with ExitStack() as stack:
        config = {**CONFIG, "until": str(until)}
        run = Run(testbed, plan, scratch / "parts", scratch / "run", config, OPTIONS)
        try:
            snapshots = _watch_links(run)
            # Not before: what it asks and hears goes over the first machine's link.
            prometheus = Prometheus(testbed, scratch)
            stack.callback(prometheus.close)
            seen, iterations = _let_strangers_try(run)
            assert run.folder is not None, run.errors()
            name = run.folder.name
            assert eventually(lambda: prometheus.follows(name)), prometheus.log()
        finally:
            until.touch()
            out, _ = run.process.communicate(timeout=LIMIT_S)
            run.log.close()
        folder = run.folder
        assert folder is not None, run.errors()
        kept = [path for path in folder.rglob("*") if path.is_file()]
        seen.places.extend(in_files(seen.secrets, kept))
        end = (run.process.returncode, out + run.errors())
        yield PlannedRun(
            run, scratch / "parts", prometheus, seen, iterations, snapshots, folder, end,
            left_over(testbed),
        )  # fmt: skip


def _watch_links(run: Run) -> tuple[Snapshot, Snapshot]:
    run.wait_for_iteration(10)
    assert run.process.poll() is None, run.errors()
    first = snapshot(run.bed, processes(run.bed))
    run.wait_for_iteration(run.status()["iterations"] + WINDOW)
    assert run.process.poll() is None, run.errors()
    return first, snapshot(run.bed, processes(run.bed))


def _let_strangers_try(run: Run) -> tuple[Seen, tuple[int, int]]:
    before = run.status()["iterations"]
    seen = look(run.bed)
    assert eventually(lambda: run.status()["iterations"] > before), "it does not go on"
    return seen, (before, run.status()["iterations"])
