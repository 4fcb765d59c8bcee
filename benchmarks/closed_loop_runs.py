"""One training after the other on a shaped testbed, and what each shows from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.api.documents.load import load_cluster, load_job
from headrace.api.plan import plan
from headrace.core.cluster import Cluster
from headrace.core.job import Job, Sync
from headrace.core.plan import Plan
from headrace.core.profile import Profile
from headrace.profiling import measured_iteration_time_s, profile_trace
from headrace.testbed import Testbed
from tests.support.cluster_bed import Run, trace_of

ROOT = Path(__file__).resolve().parents[1]
GRAPH = "generated:nodes=1e5,edges=2e6,features=128"
MODEL = {"task": "learn", "features": 128, "classes": 16, "width": 64, "fanouts": [10, 5]}
SKIP = 15
"""First iterations, in which windows fill and connections find their rates."""

LAST = 10
"""Last iterations, in which a run may end before anybody has seen how far it is."""

CORES = {"a": 100.0, "b": 8.0, "drift": 100.0, "quick": 100.0}
"""Shared out by the machines' `cpu`: in b, machines with few cores are slow; none stands still."""

CONFIGS: dict[str, tuple[str, str, str]] = {
    "distdgl": ("colocate", "maxmin", "none"),
    "dgtp": ("etp", "oes", "plan"),
    "ours": ("anneal", "priority", "plan"),
}
"""Method, flow policy of the prediction, and what shares the network: the plan or only the system.

Without traffic control, TCP is close to max-min fairness. Ours was `auto` until a first
look at a-ps, with whose profile `priority` was predicted to be the best policy, or as good, in all
modes; where `auto` takes `maxmin`, nothing is shared at all.
"""


@dataclass(frozen=True)
class Setting:
    """What is trained, on which machines."""

    name: str
    cluster: Cluster
    job: Job

    @classmethod
    def of(cls, name: str, sync: str) -> Setting:
        """One of the settings in the repository."""
        folder = ROOT / "benchmarks" / f"shaped-{name}"
        job = load_job(folder / "job.yaml").model_copy(update={"sync": Sync(sync)})
        return cls(name, load_cluster(folder / "cluster.yaml"), job)

    def plan(self, profile: Profile | None, config: str) -> Plan:
        """The plan of a configuration."""
        method, policy, _ = CONFIGS[config]
        job = self.job
        if profile is not None and profile.model_bytes is not None:
            job = job.model_copy(update={"model_bytes": profile.model_bytes})
        return plan(self.cluster, job, profile, method=method, policy=policy)


class Trainings:
    """Runs on one testbed.

    Args:
        bed: Shaped as the setting says.
        setting: What is trained.
        graph: A part for each machine.
        scratch: Folder for runs.
        accuracy: Share of right answers to reach.
        skip: First iterations that are not measured.
        last: Last iterations in which the network is not looked at.
    """

    def __init__(
        self,
        bed: Testbed,
        setting: Setting,
        graph: Path,
        scratch: Path,
        accuracy: float,
        skip: int = SKIP,
        last: int = LAST,
    ) -> None:
        self.bed, self.setting, self._skip, self._last = bed, setting, skip, last
        self._graph, self._scratch, self._accuracy = graph, scratch, accuracy

    def profile(self, steps: int) -> Profile:
        """What a short run of the plan without a profile measures."""
        first = self.setting.plan(None, "distdgl")
        run = Run(self.bed, first, self._graph, self._scratch / "profile", self._config(steps))
        return profile_trace(trace_of(run.end()), first)

    def run(self, name: str, made: Plan, config: str, steps: int) -> dict[str, Any]:
        """Train; what it took, and what the network and the cores had to do meanwhile."""
        options = ("--traffic", CONFIGS[config][2], "--checkpoint-every", "0")
        run = Run(self.bed, made, self._graph, self._scratch / name, self._config(steps), options)
        run.wait_for_iteration(self._skip)
        first = self._look()
        run.wait_for_iteration(steps - self._last)
        last = self._look()
        folder = run.end()
        trace = trace_of(folder)
        measured_s = measured_iteration_time_s(trace, self._skip)
        passed_s = last["at_s"] - first["at_s"]
        events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
        traffic_s = sum(
            each["agents_cpu_s"] + each["controller_cpu_s"]
            for each in events
            if each["kind"] == "traffic"
        )
        return {
            "measured_s": measured_s,
            "to_accuracy_s": self._to_accuracy_s(folder),
            "goodput": self._busiest(first, last, passed_s),
            "cpu_share": (last["cpu_s"] - first["cpu_s"]) / passed_s / (os.cpu_count() or 1),
            "traffic_cpu_share": traffic_s / (steps * measured_s),
            "agents_cpu_share": (last["agents_s"] - first["agents_s"]) / passed_s,
            "folder": str(folder),
        }

    def iperf_bytes_per_s(self, source: str, target: str, seconds: float = 5.0) -> float:
        """What goes over the cable of a machine while iperf3 sends to another, with headers."""
        server = subprocess.Popen(
            self.bed.command(target, ["iperf3", "--server", "--one-off"]),
            stdout=subprocess.DEVNULL,
        )
        time.sleep(0.5)
        words = ["iperf3", "--client", target, "--time", str(int(seconds) + 2)]
        client = subprocess.Popen(self.bed.command(source, words), stdout=subprocess.DEVNULL)
        try:
            time.sleep(1.0)
            first = self._look()
            time.sleep(seconds)
            last = self._look()
        finally:
            failed = client.wait(30) or server.wait(30)
        if failed:
            raise RuntimeError(f"iperf3 exited with code {failed}")
        sent: int = last["links"][source].sent - first["links"][source].sent
        return sent / float(last["at_s"] - first["at_s"])

    def drift(self, name: str, made: Plan, steps: int, slow_at: int, replan: bool) -> Any:
        """Train in epochs; halve the card of the first trainer's machine on the way."""
        machine = made.placement.trainers[0]
        nic = next(each for each in self.setting.cluster.hosts if each.name == machine)
        options = ["--traffic", "none", "--checkpoint-every", "50"]
        options += ["--replan"] if replan else []
        config = {**MODEL, "task": "epochs", "steps": steps}
        self.bed.set_nic(machine, nic.nic_in, nic.nic_out)
        run = Run(self.bed, made, self._graph, self._scratch / name, config, options)
        run.wait_for_iteration(slow_at)
        self.bed.set_nic(machine, nic.nic_in / 2, nic.nic_out / 2)
        slowed_s, slowed_at_s = time.monotonic(), time.time()
        folder = run.end()
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        decided = [each for each in events if each["kind"] == "drift"]
        taken = [each for each in decided if each.get("what") == "replan"]
        return {
            "since_slow_s": time.monotonic() - slowed_s,
            "until_replanned_s": taken[0]["at_s"] - slowed_at_s if taken else None,
            "decisions": decided,
            "folder": str(folder),
        }

    def _config(self, steps: int) -> dict[str, Any]:
        return {**MODEL, "steps": steps, "accuracy": self._accuracy}

    def _look(self) -> dict[str, Any]:
        return {
            "at_s": time.monotonic(),
            "links": self.bed.traffic(),
            "cpu_s": _used_s(),
            "agents_s": _agents_s(),
        }

    def _busiest(self, first: dict[str, Any], last: dict[str, Any], passed_s: float) -> Any:
        """The direction of a card that was used most, over its rate."""
        rows = []
        for machine in self.setting.cluster.hosts:
            before, after = first["links"][machine.name], last["links"][machine.name]
            received = (after.received - before.received) / passed_s
            sent = (after.sent - before.sent) / passed_s
            rows.append((received / machine.nic_in, machine.name, "in", received))
            rows.append((sent / machine.nic_out, machine.name, "out", sent))
        share, name, direction, rate = max(rows)
        return {"share": share, "machine": name, "direction": direction, "bytes_per_s": rate}

    def _to_accuracy_s(self, folder: Path) -> float | None:
        lines = (folder / "reports.jsonl").read_text().splitlines()
        for line in lines:
            figures = json.loads(line)
            reached = figures.get("figures", figures)
            if reached.get("accuracy", 0.0) >= self._accuracy:
                return float(reached["passed_s"])
        return None


def _used_s() -> float:
    """Seconds in which the cores of this machine were not idle."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, softirq, *_ = map(int, words)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _agents_s() -> float:
    """CPU seconds of the processes that control traffic."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"headrace.runtime.traffic" in (process / "cmdline").read_bytes():
                words = (process / "stat").read_text().rpartition(")")[2].split()
                ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def log(line: str) -> None:
    """Log a line with the time."""
    print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)
