"""Ten changes of a run, predicted from its profile and then made: what each saves per seed.

    python benchmarks/advice.py --json --output benchmarks/results/advice.json
    python benchmarks/advice.py --json --only cache --output FILE
    python benchmarks/advice.py --quick --json

Needs root, iproute2 and `headrace[shape]`. There are three jobs on shaped testbeds: one waits for
the network, one for gradients, one for a trainer that computes slowly (it sleeps, so that the two
cores of this machine do not decide). Each is profiled, planned and run. The profile of that run
predicts every change, as `headrace report` does: tasks are placed again where the change asks for
it, and the simulator gives the time per iteration. Then the changed job runs. Base and changes run
one after the other, all of them once in each repetition.

The last line is one JSON object. `kinds` has for each change its `base`, the `predicted` and the
`measured` saving of time per seed (1 - changed over base, medians over repetitions),
`is_sign_right` (or both are below 5 points), and `is_close` (within a third of what was measured,
or 5 points). `bases` has predicted and measured seconds per iteration. `--quick` runs one change,
once; the others are null.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


from benchmarks.machine import describe_machine
from headrace.api.graph import partition
from headrace.api.plan import plan
from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role, Sync
from headrace.core.plan import Plan, problem_of
from headrace.core.profile import Profile
from headrace.profiling import measured_iteration_time_s, profile_trace
from headrace.simulator import build_instance, simulate
from headrace.testbed import Testbed, take_down
from tests.support.cluster_bed import Run, trace_of

GRAPH = "generated:nodes=1e5,edges=2e6,features=128"
QUICK_GRAPH = "generated:nodes=2e4,edges=2e5,features=128"
FEATURES, CLASSES, FANOUTS = 128, 16, [10, 5]
STEPS, SKIP = 120, 20
QUICK_STEPS, QUICK_SKIP = 16, 5
SIMULATED = 60
CACHE_BYTES = 8_000_000

MBIT = 1e6 / 8
CORES = 100.0
SMALL = 0.05
DEMANDS = {Role.TRAINER: {"cpu": 1.0}, Role.SAMPLER: {"cpu": 2.0}, Role.SERVER: {"cpu": 1.0}}

ONE_TRAINER_EACH = {Role.TRAINER: {"cpu": 4.0}, Role.SAMPLER: {"cpu": 1.0}}
"""Of machines with 6 cores: else both would be placed on the faster one."""


@dataclass(frozen=True)
class Setup:
    """A job, its machines, the settings of its script, and the cache of each sampler."""

    cluster: Cluster
    job: Job
    config: Mapping[str, Any]
    cache_bytes: int = 0

    @property
    def num_seeds(self) -> int:
        """Per iteration."""
        return self.job.trainers * self.job.batch_size

    def with_job(self, **changes: Any) -> Setup:
        """The same with other settings of the job."""
        return replace(self, job=self.job.model_copy(update=changes))

    def with_machines(self, change: Callable[[Machine], dict[str, Any]]) -> Setup:
        """The same with other machines."""
        hosts = (host.model_copy(update=change(host)) for host in self.cluster.hosts)
        return replace(self, cluster=Cluster(machines=tuple(hosts)))


@dataclass(frozen=True)
class Kind:
    """A change of the setup of a base."""

    base: str
    change: Callable[[Setup], Setup]


def machines(num: int, mbit: float, kinds: tuple[str, ...] = ()) -> Cluster:
    """Machines of a testbed."""
    return Cluster(
        machines=tuple(
            Machine(
                name=f"m{i}",
                resources={"cpu": 6.0, "memory": 48e9},
                nic_in=mbit * MBIT,
                nic_out=mbit * MBIT,
                **({"kind": kinds[i]} if kinds else {}),
            )
            for i in range(num)
        )
    )


def script(width: int, **settings: Any) -> dict[str, Any]:
    """Settings of the script."""
    given = {"features": FEATURES, "classes": CLASSES, "width": width, "fanouts": FANOUTS}
    return {"task": "steps", **given, **settings}


def job(name: str, sync: Sync = Sync.RING, **settings: Any) -> Job:
    """A job; its tasks fit any machine if nothing else is said."""
    settings = {"demands": DEMANDS, **settings}
    return Job(name=name, sync=sync, iterations=200, **settings)


BASES = {
    "network": Setup(
        machines(4, 40.0),
        job("network", trainers=2, samplers_per_trainer=2, batch_size=128, window=4),
        script(64),
    ),
    "gradients": Setup(
        machines(4, 40.0),
        job("gradients", Sync.PS, trainers=3, batch_size=16, window=4),
        script(512),
    ),
    "computing": Setup(
        machines(2, 200.0, ("fast", "slow")),
        job("computing", trainers=2, batch_size=64, window=4, demands=ONE_TRAINER_EACH),
        script(64, pause_per_seed_s={"fast": 0.002, "slow": 0.005}),
    ),
}


def scaled_nics(factor: float) -> Callable[[Setup], Setup]:
    """All network cards so many times as fast."""

    def scale(host: Machine) -> dict[str, Any]:
        return {"nic_in": host.nic_in * factor, "nic_out": host.nic_out * factor}

    return lambda setup: setup.with_machines(scale)


KINDS = {
    "more samplers": Kind("computing", lambda base: base.with_job(samplers_per_trainer=2)),
    "fewer samplers": Kind("network", lambda base: base.with_job(samplers_per_trainer=1)),
    "trainers": Kind("network", lambda base: base.with_job(trainers=3)),
    "window": Kind("network", lambda base: base.with_job(window=1)),
    "faster NICs": Kind("network", scaled_nics(2.0)),
    "slower NICs": Kind("network", scaled_nics(0.5)),
    "faster machine": Kind(
        "computing", lambda base: base.with_machines(lambda host: {"kind": "fast"})
    ),
    "ring or servers": Kind("gradients", lambda base: base.with_job(sync=Sync.RING)),
    "cache": Kind("network", lambda base: replace(base, cache_bytes=CACHE_BYTES)),
    "batch size": Kind("gradients", lambda base: base.with_job(batch_size=64)),
}
QUICK = ("faster machine",)


@dataclass
class Bench:
    """Runs on one testbed after the other."""

    scratch: Path
    steps: int
    skip: int
    graph: str

    def measure(self, name: str, kinds: Mapping[str, Kind], repetitions: int) -> Any:
        """Predict and make the changes of one base."""
        base = BASES[name]
        graph = self.scratch / f"graph-{base.cluster.num_machines}"
        if not graph.exists():
            partition(self.graph, graph, base.cluster.num_machines)
        bed_name = f"advice-{os.getpid()}"
        bed = Testbed.up(base.cluster, bed_name, log=log, shaped=True, cores=CORES)
        try:
            made = plan(
                base.cluster, base.job, method="colocate", policy="priority", seed_mix="local-first"
            )
            if repetitions > 1:
                found = self.run(bed, base, made, graph, "profile")
                made = _planned(base, profile_trace(found, made), graph)
            return self._compare(bed, base, made, graph, kinds, repetitions)
        finally:
            take_down(bed_name)

    def _compare(
        self,
        bed: Testbed,
        base: Setup,
        made: Plan,
        graph: Path,
        kinds: Mapping[str, Kind],
        repetitions: int,
    ) -> Any:
        times_s: dict[str, list[float]] = {name: [] for name in ("base", *kinds)}
        plans: dict[str, tuple[Setup, Plan]] = {"base": (base, made)}
        predicted_s: dict[str, float] = {}
        measured = made.profile
        for repetition in range(repetitions):
            for name, took_s in times_s.items():
                if name not in plans:
                    changed = kinds[name].change(base)
                    its_plan = _planned(changed, measured, graph)
                    plans[name] = changed, its_plan
                    predicted_s[name] = _predicted_s(its_plan, its_plan.profile)
                setup, its_plan = plans[name]
                for host in setup.cluster.hosts:
                    bed.set_nic(host.name, host.nic_in, host.nic_out)
                trace = self.run(bed, setup, its_plan, graph, f"{name}-{repetition}")
                took_s.append(measured_iteration_time_s(trace, self.skip))
                if name == "base" and not repetition:
                    measured = profile_trace(trace, made, self.skip)
                    predicted_s[name] = _predicted_s(made, measured)
                log(
                    f"{base.job.name}, {name}: {took_s[-1] * 1e3:.0f} ms, predicted "
                    f"{predicted_s[name] * 1e3:.0f} ms"
                )
        measured_s = {name: median(each) for name, each in times_s.items()}
        return {
            "predicted_s": predicted_s,
            "measured_s": measured_s,
            "all_s": times_s,
            "num_seeds": {name: setup.num_seeds for name, (setup, _) in plans.items()},
        }

    def run(self, bed: Testbed, setup: Setup, made: Plan, graph: Path, name: str) -> Any:
        """The trace of a run."""
        kinds = {host.name: host.kind for host in setup.cluster.hosts}
        config = {**setup.config, "steps": self.steps, "cache_bytes": setup.cache_bytes}
        if "pause_per_seed_s" in config:
            by_kind = config["pause_per_seed_s"]
            config["pause_per_seed_s"] = {host: by_kind[kind] for host, kind in kinds.items()}
        folder = self.scratch / setup.job.name / name.replace(" ", "-")
        options = ("--traffic", "plan", "--checkpoint-every", "0")
        return trace_of(Run(bed, made, graph, folder, config, options).end())


def _planned(setup: Setup, profile: Profile, graph: Path) -> Plan:
    wanted = setup.job
    if profile.model_bytes is not None:
        wanted = wanted.model_copy(update={"model_bytes": profile.model_bytes})
    return plan(
        setup.cluster,
        wanted,
        profile,
        policy="priority",
        graph=graph,
        num_neighbors=FANOUTS,
        cache_bytes=setup.cache_bytes,
    )


def _predicted_s(made: Plan, profile: Profile) -> float:
    """What an iteration adds to a long job."""
    problem = problem_of(made)._replace(profile=profile)
    instance, _ = build_instance(problem, made.placed, seeds=made.seeds, num_iterations=SIMULATED)
    half = replace(instance, num_iterations=SIMULATED // 2)
    took_s = [simulate(each, made.policy).makespan_s for each in (half, instance)]
    return (took_s[1] - took_s[0]) / (SIMULATED - SIMULATED // 2)


def savings(found: Mapping[str, Any], name: str, base: str) -> dict[str, Any]:
    """What a change saves per seed, predicted and measured."""
    num = found["num_seeds"]
    saving = {}
    for what in ("predicted", "measured"):
        time_s = found[f"{what}_s"]
        saving[what] = 1 - (time_s[name] / num[name]) / (time_s["base"] / num["base"])
    predicted, measured = saving["predicted"], saving["measured"]
    is_small = max(abs(predicted), abs(measured)) < SMALL
    return {
        "base": base,
        **saving,
        "is_sign_right": is_small or predicted * measured > 0,
        "is_close": abs(predicted - measured) <= max(abs(measured) / 3, SMALL),
    }


def log(line: str) -> None:
    """Log a line with the time."""
    print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--quick", action="store_true", help="one change, one repetition")
    parser.add_argument("--only", help=f"of {', '.join(KINDS)}, by commas")
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--scratch", type=Path, help="folder for graphs and runs, kept")
    parser.add_argument("--output", type=Path, help="result file to write, or to add to")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # takes the testbed down
    begin_s = time.monotonic()
    scratch = args.scratch or Path(tempfile.mkdtemp(prefix="headrace-advice-"))
    wanted = QUICK if args.quick else args.only.split(",") if args.only else tuple(KINDS)
    found: dict[str, Any] = {"kinds": dict.fromkeys(KINDS), "bases": {}}
    if args.output is not None and args.output.exists():
        found = json.loads(args.output.read_text())
    steps, skip = (QUICK_STEPS, QUICK_SKIP) if args.quick else (STEPS, SKIP)
    bench = Bench(scratch, steps, skip, QUICK_GRAPH if args.quick else GRAPH)
    try:
        for base in BASES:
            kinds = {name: KINDS[name] for name in wanted if KINDS[name].base == base}
            if not kinds:
                continue
            times = bench.measure(base, kinds, 1 if args.quick else args.repetitions)
            found["bases"][base] = times
            found["kinds"] |= {name: savings(times, name, base) for name in kinds}
            rows = [row for row in found["kinds"].values() if row is not None]
            found |= {
                "num_sign_right": sum(row["is_sign_right"] for row in rows),
                "num_close": sum(row["is_close"] for row in rows),
                "benchmark": "advice",
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "command": "python benchmarks/advice.py " + " ".join(sys.argv[1:]),
                "machine": describe_machine(),
                "is_quick": args.quick,
                "elapsed_s": round(time.monotonic() - begin_s, 1),
            }
            if args.output is not None:
                args.output.write_text(json.dumps(found, indent=1) + "\n")
    finally:
        if args.scratch is None:
            shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps(found) if args.json else json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
