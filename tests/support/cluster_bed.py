"""Runs on an emulated cluster, and what can be seen of them from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.api.documents.load import save_plan
from headrace.api.plan import plan
from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role, Sync
from headrace.core.placement import PlacementFile
from headrace.core.plan import Plan, SeedMix
from headrace.core.trace import Trace
from headrace.observability.trace_file import load_trace
from headrace.testbed import Testbed

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("cluster_job.py")
MACHINES = ("m0", "m1", "m2", "m3")
PATIENCE_S = 600.0
_TICKS = os.sysconf("SC_CLK_TCK")


def make_cluster() -> Cluster:
    """Four machines that take whatever a plan gives them."""
    resources = {"cpu": 8.0, "memory": 8e9}
    return Cluster(
        machines=tuple(
            Machine(name=name, resources=resources, nic_in=1.25e9, nic_out=1.25e9)
            for name in MACHINES
        )
    )


@dataclass(frozen=True)
class Layout:
    """Who goes where: three trainers with two samplers each."""

    trainers: tuple[str, ...] = ("m0", "m1", "m2")
    samplers: tuple[str, ...] = ("m0", "m3", "m1", "m1", "m2", "m3")
    servers: tuple[str, ...] = ()  # parameter servers; none for a ring
    seeds: tuple[int, ...] = ()  # of each sampler, from all parts alike; none for equal shares


def make_plan(layout: Layout, batch_size: int, window: int = 4) -> Plan:
    """The plan of a layout; its prediction is made later, from a profile."""
    cluster = make_cluster()
    num_trainers = len(layout.trainers)
    job = Job(
        name="cluster-runtime",
        trainers=num_trainers,
        samplers_per_trainer=len(layout.samplers) // num_trainers,
        batch_size=batch_size,
        window=window,
        sync=Sync.PS if layout.servers else Sync.RING,
        parameter_servers=max(1, len(layout.servers)),
        iterations=50,
        demands={Role.TRAINER: {"cpu": 1}, Role.SAMPLER: {"cpu": 1}, Role.STORE: {"cpu": 1}},
    )
    made = plan(cluster, job, method="colocate", policy="maxmin", seed_mix="uniform")
    changes: dict[str, Any] = {
        "placement": PlacementFile(
            samplers=layout.samplers, trainers=layout.trainers, servers=layout.servers
        )
    }
    if layout.seeds:
        rows = np.array(layout.seeds, float)[:, None] / len(MACHINES)
        seeds = np.repeat(rows, len(MACHINES), axis=1)
        changes |= {"seed_mix": SeedMix.of(seeds, cluster), "seed_mix_name": "local-first"}
    return Plan.model_validate(made.model_dump() | changes)


@dataclass
class Run:
    """A run of a plan, started as a user starts it."""

    bed: Testbed
    plan: Plan
    graph: Path
    scratch: Path
    config: Mapping[str, Any]
    options: Sequence[str] = ()
    began_s: float = field(init=False)
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.runs = self.scratch / "runs"
        path, settings = self.scratch / "plan.json", self.scratch / "config.yaml"
        save_plan(self.plan, path)
        settings.write_text(json.dumps(dict(self.config)))
        words = [sys.executable, "-m", "headrace", "run", "--plan", str(path), "--json"]
        words += ["--graph", str(self.graph), "--runs", str(self.runs), "--config", str(settings)]
        words += ["--working-dir", str(SCRIPT.parent), *self.options, str(SCRIPT)]
        self.log = (self.scratch / "errors").open("w")
        self.began_s = time.monotonic()
        self.process = subprocess.Popen(
            self.bed.command("m0", words),
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            start_new_session=True,
        )

    @property
    def folder(self) -> Path | None:
        found = sorted(self.runs.glob("2*"))
        return found[-1] if found else None

    def status(self) -> dict[str, Any]:
        if self.folder is None or not (self.folder / "status.json").exists():
            return {"iterations": 0, "state": "starting"}
        status: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        return status

    def wait_for_iteration(self, number: int) -> None:
        """Until all trainers have done so many steps, or the run has ended."""
        end_s = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and self.status()["iterations"] < number:
            if time.monotonic() > end_s:
                self.interrupt()
                raise RuntimeError(f"iteration {number} did not come: {self.errors()}")
            time.sleep(0.2)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> Path:
        """Wait for its end; its folder."""
        self.process.communicate(timeout=PATIENCE_S)
        self.log.close()
        if self.process.returncode or self.folder is None:
            raise RuntimeError(f"a run ended with {self.process.returncode}: {self.errors()}")
        return self.folder

    def errors(self) -> str:
        return (self.scratch / "errors").read_text()[-2000:]


def trace_of(folder: Path) -> Trace:
    return load_trace(folder / "trace.npz")


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


@dataclass(frozen=True)
class Seen:
    """A process on an emulated machine.

    Attributes:
        kind: `store`, `sampler`, `trainer`, `ps`, `actor`, `driver`.
        cpu_s: Of all its threads so far.
        own_bytes: RssAnon and RssShmem.
    """

    kind: str
    cpu_s: float
    own_bytes: int


_KINDS = (
    ("headrace.graph.store", "store"),
    ("headrace.graph.sampler_worker", "sampler"),
    ("headrace.training.parameter_server", "ps"),
    ("headrace.runtime.trainer", "trainer"),
    ("Actor", "actor"),
    ("headrace run --plan", "driver"),
    ("headrace run --resume", "driver"),
)


def processes(bed: Testbed) -> dict[int, Seen]:
    """Processes of a run on the machines of a testbed, by number."""
    networks = {os.stat(f"/proc/{host.init.pid}/ns/net").st_ino for host in bed.hosts if host.init}
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.stat(entry / "ns" / "net").st_ino not in networks:
                continue
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            kind = next((kind for text, kind in _KINDS if text in words), None)
            if kind is None or "headrace.testbed" in words:
                continue
            found[int(entry.name)] = Seen(kind, _cpu_s(entry), _own_bytes(entry))
        except OSError:
            continue
    return found


def _cpu_s(entry: Path) -> float:
    fields = (entry / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _own_bytes(entry: Path) -> int:
    wanted = ("RssAnon:", "RssShmem:")
    lines = (entry / "status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(wanted))
