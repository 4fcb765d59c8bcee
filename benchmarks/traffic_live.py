"""Traffic settings on a shaped testbed: seconds per iteration, predicted and measured."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.closed_loop_runs import CORES, GRAPH, MODEL, Setting, Trainings, log
from headrace.api.graph import partition
from headrace.api.plan import plan
from headrace.core.plan import Plan
from headrace.core.profile import Profile
from headrace.testbed import Testbed, take_down

FORMS = {"today": None, "exact": None, "safe": "int8", "least": "int4"}
"""Form of the features that each choice needs; dense ones have no smaller lossless form."""

PROFILE_STEPS, ACCURACY = 40, 0.5


def measure_live(scratch: Path, repetitions: int, steps: int) -> dict[str, Any]:
    """Profile, plan and run mode b of the closed loop with each choice, one after the other."""
    setting = Setting.of("b", "ps")
    num = setting.cluster.num_machines
    graphs = {
        form: partition(GRAPH, scratch / f"graph-{form}", num, features=form).folder
        for form in dict.fromkeys(FORMS.values())
    }
    bed_name = f"traffic-{os.getpid()}"
    bed = Testbed.up(setting.cluster, bed_name, log=log, shaped=True, cores=CORES[setting.name])
    try:
        trainings = {
            name: Trainings(bed, setting, graphs[form], scratch / name, ACCURACY)
            for name, form in FORMS.items()
        }
        for name in FORMS:
            (scratch / name).mkdir(parents=True)
        profile = trainings["today"].profile(PROFILE_STEPS)
        plans = {name: _plan(setting, profile, graphs[None], name) for name in FORMS}
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in FORMS}
        for repetition in range(repetitions):
            for name, made in plans.items():
                found = trainings[name].run(f"{name}-{repetition}", made, "ours", steps)
                status = json.loads((Path(found["folder"]) / "status.json").read_text())
                found["hit_rate"] = status["cache_hit_rate"]
                runs[name].append(found)
                log(f"{name}: {found['measured_s'] * 1e3:.0f} ms, {found}")
    finally:
        take_down(bed_name)
    return {name: _summary(plans[name], found, runs["today"]) for name, found in runs.items()}


def _plan(setting: Setting, profile: Profile, graph: Path, name: str) -> Plan:
    if name == "today":
        return setting.plan(profile, "ours")
    job = setting.job.model_copy(update={"model_bytes": profile.model_bytes or 0.0})
    return plan(
        setting.cluster,
        job,
        profile,
        policy="priority",
        graph=graph,
        num_neighbors=MODEL["fanouts"],  # type: ignore[arg-type]
        traffic=name,  # type: ignore[arg-type]
    )


def _summary(made: Plan, runs: list[dict[str, Any]], today: list[dict[str, Any]]) -> dict[str, Any]:
    measured_s = median(run["measured_s"] for run in runs)
    traffic = made.profile.traffic
    rates = [run["hit_rate"] for run in runs if run["hit_rate"] is not None]
    return {
        "iteration_s": measured_s,
        "predicted_s": made.time_s,
        "predicted_over_measured": made.time_s / measured_s,
        "times_faster": median(run["measured_s"] for run in today) / measured_s,
        "network_bytes": made.network_bytes,
        "settings": None if traffic is None else traffic.sentence(),
        "hit_rate": median(rates) if rates else None,
        "predicted_hit_rate": None if traffic is None else traffic.hit_rate,
        "busiest": runs[0]["goodput"],
        "cpu_share": median(run["cpu_share"] for run in runs),
        "to_accuracy_s": runs[0]["to_accuracy_s"],
        "iteration_s_all": [run["measured_s"] for run in runs],
    }
