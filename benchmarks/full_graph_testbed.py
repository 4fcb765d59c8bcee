"""Full-graph training on four shaped machines, for `full_graph.py`.

Machines share the cores of this machine. Without overlap (`none`), every exchange ends
before anything else is computed; the time of an exchange is what the trainer waits that comes last.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.full_graph_trainers import graph_of
from headrace.api.documents.load import save_plan
from headrace.api.graph import partition
from headrace.api.plan import plan
from headrace.api.profile import load_trace, profile_trace
from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, JobKind, Role
from headrace.core.plan import Plan
from headrace.testbed import Testbed, take_down

SCRIPT = Path(__file__).with_name("full_graph_script.py")
NUM_MACHINES = 4
GENERATED = "generated:nodes=40000,edges=400000,features=256,classes=16,signal=0.5"
CASES = {"pubmed": 50.0, "generated": 200.0}
"""Rates of cards in Mbit/s at which computing and exchanges take about as long."""

UNCUT = "generated:nodes=10000,edges=500000,features=256,classes=16,signal=0.5"
UNCUT_MBIT = 100.0

CORES = 100.0
"""So many that no machine's share of the cores is limited."""

SETTINGS: dict[str, Any] = {"model": "SAGE", "hidden": 256, "layers": 3, "epochs": 13}
HOWS = ("none", "sums", "groups", "bins", "bins-matchings")
"""Nothing overlaps; sums of own rows; the rows that no other trainer needs; bins of others; and
bins that are sent in rounds of matchings."""

EXCHANGES = Path(__file__).with_name("full_graph_exchanges.py")
UNCUT_TRAINER = Path(__file__).with_name("full_graph_uncut.py")

NUM_WARM, REPETITIONS = 3, 2
EXCHANGE_MBIT = 50.0


def log(line: str) -> None:
    """Log a line."""
    print(line, file=sys.stderr, flush=True)


def machines(rate_mbit: float) -> Cluster:
    """Four machines with equal cards."""
    nic = rate_mbit * 125e3
    return Cluster(
        machines=tuple(
            Machine(name=f"m{i}", resources={"cpu": 4.0}, nic_in=nic, nic_out=nic)
            for i in range(NUM_MACHINES)
        )
    )


def measure_testbed(scratch: Path) -> dict[str, Any]:
    """Seconds per epoch of each way, in turns, by graph."""
    if shutil.which("iperf3") is None:
        raise SystemExit("iperf3 is not installed: apt-get install iperf3")
    name = f"full-graph-{os.getpid()}"
    bed = Testbed.up(machines(max(CASES.values())), name, shaped=True, cores=CORES)
    found = {}
    try:
        for case, rate in CASES.items():
            for host in machines(rate).hosts:
                bed.set_nic(host.name, host.nic_in, host.nic_out)
            if case == "generated":
                graph = partition(GENERATED, scratch / "testbed", NUM_MACHINES)
            else:
                graph = graph_of(case, NUM_MACHINES, scratch)
            found[case] = _measure(bed, rate, graph.folder, scratch / f"runs-{case}")
        for host in machines(EXCHANGE_MBIT).hosts:
            bed.set_nic(host.name, host.nic_in, host.nic_out)
        exchanges = _measure_exchanges(bed, scratch / "exchanges.json")
    finally:
        take_down(name)
    return {**SETTINGS, "machines": NUM_MACHINES, "graphs": found, "exchanges": exchanges}


def _in_machines(bed: Testbed, script: Path, *words: str) -> None:
    """Run a script in every machine with its rank, the first machine, and other words."""
    trainers = [
        subprocess.Popen(
            bed.command(f"m{rank}", [sys.executable, str(script), str(rank), "m0", *words])
        )
        for rank in range(NUM_MACHINES)
    ]
    codes = [trainer.wait(600) for trainer in trainers]
    if any(codes):
        raise RuntimeError(f"trainers of {script.name} ended with {codes}")


def _measure_exchanges(bed: Testbed, path: Path) -> dict[str, Any]:
    """Times of random exchanges over the lower bound: the busiest card at the rate of iperf3."""
    rate = _iperf_bytes_per_s(bed)
    _in_machines(bed, EXCHANGES, str(path))
    exchanges = json.loads(path.read_text())
    over: dict[str, list[float]] = {
        how: [median(each["seconds"][how]) * rate / each["busiest_bytes"] for each in exchanges]
        for how in exchanges[0]["seconds"]
    }
    slower = [b / a for a, b in zip(over["at_once"], over["matchings"], strict=True)]
    return {
        "rate_mbit": EXCHANGE_MBIT,
        "num": len(exchanges),
        "num_rounds": [each["num_rounds"] for each in exchanges],
        "over_bound": {
            how: {"mean": float(np.mean(each)), "most": max(each)} for how, each in over.items()
        },
        "matchings_over_at_once": {
            "mean": float(np.mean(slower)),
            "least": min(slower),
            "most": max(slower),
        },
    }


def measure_parallelism(scratch: Path) -> dict[str, Any]:
    """Seconds per epoch by rows in bins and by features, in turns, of parts with many rows."""
    name = f"full-graph-{os.getpid()}"
    bed = Testbed.up(machines(UNCUT_MBIT), name, with_ray=False, shaped=True, cores=CORES)
    try:
        # Each part has an edge from almost every node of the others, as if no cut were good.
        graph = partition(UNCUT, scratch / "uncut", NUM_MACHINES, method="hash").folder
        path = scratch / "uncut.json"
        _in_machines(bed, UNCUT_TRAINER, str(graph), str(path))
    finally:
        take_down(name)
    found = json.loads(path.read_text())
    planned = {way: plan(machines(UNCUT_MBIT), _job(way), graph=graph) for way in ("auto", *found)}
    # The first epochs exchange constant rows, too.
    for way, each in found.items():
        each["epoch_s"] = median(each["seconds"][NUM_WARM:])
        each["planned_bytes"] = planned[way].network_bytes
        each["planned_network_s"] = planned[way].time_s
    return {
        "graph": UNCUT,
        "rate_mbit": UNCUT_MBIT,
        "ways": found,
        "times_faster": found["rows"]["epoch_s"] / found["features"]["epoch_s"],
        "planned": "features" if planned["auto"].job.swaps[0].slices else "rows",
    }


def _job(parallelism: str) -> Job:
    return Job.model_validate(
        {
            "name": "full-graph",
            "kind": JobKind.FULL_GRAPH,
            "trainers": NUM_MACHINES,
            "swaps": [SETTINGS["hidden"]] * (SETTINGS["layers"] - 1),
            "demands": {role: {"cpu": 1} for role in (Role.TRAINER, Role.SAMPLER)},
            "parallelism": parallelism,
        }
    )


def _measure(bed: Testbed, rate_mbit: float, graph: Path, scratch: Path) -> dict[str, Any]:
    scratch.mkdir()
    job = _job("rows")
    path = scratch / "plan.json"
    made = plan(machines(rate_mbit), job, graph=graph)
    save_plan(made, path)
    iperf = _iperf_bytes_per_s(bed)
    runs: dict[str, list[dict[str, Any]]] = {how: [] for how in HOWS}
    for repetition in range(REPETITIONS):
        for how in HOWS:
            found = _run(bed, graph, path, scratch / f"{how}-{repetition}", how)
            runs[how].append(found)
            log(f"testbed, {graph.name}, {how}: {json.dumps(found)}")
    epochs = {how: median(each["epoch_s"] for each in found) for how, found in runs.items()}
    none = runs["none"]
    return {
        "rate_mbit": rate_mbit,
        "prediction": {how: _prediction(made, scratch / f"{how}-0", runs[how]) for how in HOWS},
        "epoch_s": epochs,
        "times_faster": {how: epochs["none"] / value for how, value in epochs.items()},
        "wire_over_payload": median(each["wire_over_payload"] for each in none),
        "iperf_bytes_per_s": iperf,
        "busiest_over_iperf": median(each["exchange_bytes_per_s"] for each in none) / iperf,
        # Without overlap: the time of an epoch in which nothing travels.
        "computing_over_exchange": median(run["epoch_s"] / run["exchange_s"] - 1 for run in none),
        "runs": runs,
        # Sums of groups of rows are rounded in another order.
        "losses": {how: sorted({run["loss"] for run in found}) for how, found in runs.items()},
    }


def _prediction(made: Plan, runs: Path, found: list[dict[str, Any]]) -> dict[str, float]:
    """The time of an epoch, planned with the profile of the first run, beside that of the last."""
    profile = profile_trace(load_trace(runs / "latest" / "trace.npz"), made, NUM_WARM)
    predicted_s, measured_s = plan(made.cluster, made.job, profile).time_s, found[-1]["epoch_s"]
    assert profile.full_graph is not None
    return {
        "predicted_s": predicted_s,
        "measured_s": measured_s,
        "predicted_over_measured": predicted_s / measured_s,
        "predicted_bytes": sum(
            float(profile.full_graph.volumes(swap).sum()) for swap in profile.full_graph.swaps
        ),
        "measured_bytes": profile.full_graph.epoch_bytes or 0.0,
    }


def _run(bed: Testbed, graph: Path, made: Path, runs: Path, how: str) -> dict[str, Any]:
    runs.mkdir()
    words = [sys.executable, "-m", "headrace", "run", "--plan", str(made), "--graph", str(graph)]
    words += [
        "--runs",
        str(runs),
        "--checkpoint-every",
        "0",
        "--set",
        f"how={how}",
        "--set",
        f"to={runs}",
    ]
    words += [each for key, value in SETTINGS.items() for each in ("--set", f"{key}={value}")]
    done = subprocess.run(
        bed.command("m0", [*words, str(SCRIPT)]), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{how} ended with {done.returncode}: {done.stderr[-3000:]}")
    trainers = [json.loads(path.read_text()) for path in sorted(runs.glob("timed-*"))]
    times = trainers[0]["times"][NUM_WARM:]
    num_epochs = len(times) - 1
    # Each trainer sends the gradients of the model but for its own share, twice.
    ring = 2 * (1 - 1 / len(trainers)) * trainers[0]["model_bytes"]
    payload = [each["sent"][-1] - each["sent"][-2] + ring for each in trainers]
    wire = np.array([np.diff(each["wire"], axis=0)[NUM_WARM:] for each in trainers])
    found = {
        "epoch_s": median(b - a for a, b in pairwise(times)),
        "payload_bytes": payload,
        # By trainer: received and sent.
        "wire_bytes": wire.mean(1).tolist(),
        "wire_over_payload": float(wire[:, :, 1].sum() / num_epochs / sum(payload)),
        "cpu_s": [median(np.diff(each["cpu_s"])[NUM_WARM:]) for each in trainers],
        "loss": trainers[0]["losses"][-1],
    }
    if how == "none":
        # By trainer, epoch and swap: seconds and bytes.
        swaps = np.array([each["swaps"][NUM_WARM:] for each in trainers])
        found["exchange_s"] = float(np.median(swaps[..., 0].min(0).sum(1)))
        # The fullest card of each swap: what is sent forward is received backward.
        busiest = swaps[..., 1].max(0).sum(1).mean() * found["wire_over_payload"]
        found["exchange_bytes_per_s"] = float(busiest / found["exchange_s"])
    return found


def _iperf_bytes_per_s(bed: Testbed) -> float:
    """What a card sends to another machine, with headers."""
    server = subprocess.Popen(
        bed.command("m1", ["iperf3", "--server", "--one-off"]), stdout=subprocess.DEVNULL
    )
    time.sleep(0.5)
    client = subprocess.Popen(
        bed.command("m0", ["iperf3", "--client", "m1", "--time", "7"]), stdout=subprocess.DEVNULL
    )
    time.sleep(1.0)
    first, began_s = bed.traffic()["m0"].sent, time.monotonic()
    time.sleep(5.0)
    last, passed_s = bed.traffic()["m0"].sent, time.monotonic() - began_s
    if client.wait(30) or server.wait(30):
        raise RuntimeError("iperf3 failed")
    return (last - first) / passed_s
