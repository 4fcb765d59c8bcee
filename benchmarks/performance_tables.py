"""What the performance page shows of each result file: part of `performance_page.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.performance_endpoints import bounds, crowds, fuzz, planted, simulation
from benchmarks.performance_format import Result, Table, by_name, dig, figures, show, table
from benchmarks.performance_full_graph import full_graph
from benchmarks.performance_memory import memory
from benchmarks.performance_scripts import converted
from benchmarks.performance_traffic import traffic

_NOT_FIGURES = frozenset(
    {
        "benchmark",
        "date",
        "machine",
        "command",
        "commands",
        "note",
        "is_quick",
        "seconds",
        "elapsed_s",
    }
)
_MOST_ROWS = 60
SWEEPS = {"batch_size": "batch size", "pmr": "peak over mean of volumes"}


def planner(result: Result) -> Table:
    """Plans of all settings, and how well the objective ranks placements."""
    return [
        *by_name(
            result, "settings", "setting",
            ("search", "search_s", "s"),
            ("makespan over the bound", "gap", "%"),
            ("share of plans proven best", "proven", "%"),
            ("saving over DGTP, K = 2", "saving", "%"),
            ("worst seed", "worst_saving", "%"),
            ("seeds", "num_seeds", ""),
        ),
        *by_name(
            result, "rank_correlation", "rank correlation with rehearsals",
            ("our objective, maxmin", "objective_maxmin", ""),
            ("the paper's critical path, maxmin", "critical_path_maxmin", ""),
            ("our objective, oes", "objective_oes", ""),
            ("the paper's critical path, oes", "critical_path_oes", ""),
        ),
    ]  # fmt: skip


def simulator(result: Result) -> Table:
    """Events per second, and the largest setting."""
    policies = [(name, name, "") for name in ("oes", "maxmin", "priority")]
    return [
        *by_name(result, "events_per_s", "events per second, K = 2", *policies),
        *by_name(result, "events_per_s_unlimited", "the same, window unlimited", *policies),
        *figures(
            result,
            ("1,024 machines, 20 iterations, `oes`", "scale_1024_s", "s"),
            ("events of that", "scale_1024_events", ""),
        ),
    ]


def theory(result: Result) -> Table:
    """What was tried of the theorems."""
    return figures(
        result,
        ("random instances", "instances", ""),
        ("violations of theorem 3 (OES within the critical path)", "theorem3_violations", ""),
        ("violations of the factor Delta", "delta_violations", ""),
        ("instances with pacing", "paced_instances", ""),
        ("violations of its bound", "paced_violations", ""),
    )


def paper(result: Result) -> Table:
    """Gains over the paper's schedulers, in its simulation settings."""
    rows = []
    for setting, sweeps in (dig(result, "gains") or {}).items():
        for sweep, gains in sweeps.items():
            for rival, gain in gains.get("ours", {}).items():
                mean, least = show(gain["mean"], "%"), show(gain["smallest"], "%")
                rows.append((setting, SWEEPS.get(sweep, sweep), rival, mean, least))
    return table(("setting", "swept", "against", "time saved, mean", "smallest"), rows)


def graph_data(result: Result) -> Table:
    """Partitioning at scale, starting, and cuts beside METIS."""
    rows = [
        (name, parts, show(each.get("cut"), "%"), show(each.get("cut_ratio")),
         show(each.get("imbalance")), show(each.get("remote_fraction"), "%"))
        for name, by_parts in (dig(result, "quality") or {}).items()
        for parts, each in by_parts.items()
    ]  # fmt: skip
    return [
        *figures(
            result,
            ("10 M nodes, 160 M edges, 128 features into parts: time", "scale/wall_s", "s"),
            ("the same: memory of its own", "scale/peak_own_gib", "GiB"),
            ("the same: on disk", "scale/disk_gib", "GiB"),
            ("the same: balancing communication", "scale/stages_s/balancing communication", "s"),
            ("100 M nodes, 1.6 B edges, topology alone, Fennel: time", "stream/wall_s", "s"),
            ("the same: memory of its own", "stream/peak_own_gib", "GiB"),
            ("the same: edges cut", "stream/cut", "%"),
            ("a new process opens the 10 M graph", "start/open_s", "s"),
            ("... and has its first batch, with starting Python", "start/first_sample_s", "s"),
            ("memory of a second such process", "start/second_process_own_mib", "MiB"),
        ),
        *table(
            ("graph", "parts", "edges cut", "over METIS alone", "largest communication over mean",
             "remote in a batch"),
            rows,
        ),
    ]  # fmt: skip


def data_path(result: Result) -> Table:
    """Training speed, sampling and gathering."""
    runs = [
        (str(number), *(show(each.get(key), "x") for key in ("ratio", "ceiling")))
        for number, each in enumerate(result.get("light_runs", ()), 1)
    ]
    return [
        *figures(
            result,
            ("training with samplers over plain PyG, GraphSAGE 2 x 64", "end_to_end_ratio", "x"),
            ("the same, 3 x 256", "end_to_end_ratio_heavy", "x"),
            ("over PyG with torch-sparse, 2 x 64", "over_torch_sparse", "x"),
            ("our sampler over DGL 1.1.3's, fan-out 15, 10, 5", "kernel_ratio", "x"),
            ("our sampler, per batch of 1,024", "details/kernel/ms_per_batch/ours", "ms"),
            ("rows from a store over those of a bare socket", "gather_ratio", "x"),
            ("the same with TLS", "gather_ratio_tls", "x"),
            ("the same, 100 rows per request", "gather_ratio_100", "x"),
            ("the same, 100 rows, with TLS", "gather_ratio_100_tls", "x"),
            ("a store's rows", "details/gather/megabytes_per_s/service 1", "MB/s"),
            ("share of time in which the trainer waits", "idle_share", "%"),
            ("memory after 2,000 batches over that after 200", "memory_growth", "x"),
            ("rows that a cache of a tenth of all has", "cache_hit_rate", "%"),
        ),
        *table(("2 x 64, run", "over plain PyG", "the most that samplers could give"), runs),
    ]


def transports(result: Result) -> Table:
    """Transports beside a bare socket."""
    kinds = list(result.get("idle", ()))
    if not kinds:
        return []
    rows = [
        (
            f"{protection}, {num_rows} rows, {in_flight} in flight",
            *(show(measured["ratios"].get(kind), "x") for kind in kinds),
        )
        for protection, by_rows in result.get("throughput", {}).items()
        for num_rows, by_flight in by_rows.items()
        for in_flight, measured in by_flight.items()
    ]
    most = max(map(int, result["idle"][kinds[0]]))
    idle = [
        (kind, side, *(show(found[side][key], unit) for key, unit in _IDLE))
        for kind in kinds
        if (found := result["idle"][kind][str(most)]) is not None
        for side in ("client", "server")
    ]
    return [
        *table(("over a bare socket", *kinds), rows),
        *table((f"{most} idle streams", "side", "of a core", "threads", "KiB per stream"), idle),
    ]


_IDLE = (("core_share", "%"), ("threads", ""), ("kib_per_stream", ""))


def same_mathematics(result: Result) -> Table:
    """Accuracy beside PyG's loader."""
    return by_name(
        result, "tasks", "task",
        ("headrace, points", "ours", ""),
        ("PyG's loader", "theirs", ""),
        ("difference", "difference", ""),
        ("standard error", "standard_error", ""),
        ("within what is allowed", "is_within", ""),
    )  # fmt: skip


def cluster_runtime(result: Result) -> Table:
    """Runs on the emulated cluster."""
    return [
        *figures(
            result,
            ("from `headrace run` to the first batch", "start_to_first_batch_s", "s"),
            ("what a graph of 10 M nodes adds", "large_graph_adds_s", "s"),
            ("processor time that is not the tasks', of the time", "overhead_share", "%"),
            ("... beyond that of idle Ray", "overhead_share_beyond_idle_ray", "%"),
            ("tracing, of the time", "overhead/tracing_share", "%"),
            ("memory after 2,000 iterations over that after 200", "memory_growth", "x"),
            ("share of time in which trainers wait for batches", "idle_share", "%"),
            ("tasks where the plan says", "placed_as_planned", ""),
            ("bytes in the trace against counters of the links", "link_bytes_error", "%"),
            ("gradients of three trainers against one process", "gradient_difference/equal", ""),
            ("the same with unequal shares", "gradient_difference/unequal", ""),
            ("runs interrupted at any moment", "interrupts", ""),
            ("processes and files that these left", "left_by_interrupts", ""),
            ("testbeds brought up and down", "ups_and_downs", ""),
            ("links, namespaces and processes that these left", "left_by_testbeds", ""),
        ),
        *by_name(
            result, "predictions", "placement, predicted over measured time",
            ("by its own profile", "by_own_profile/predicted_over_measured", ""),
            ("by another placement's profile", "by_first_profile/predicted_over_measured", ""),
        ),
        *by_name(
            result, "accuracy", "accuracy after a run on three trainers",
            ("headrace, points", "ours", ""), ("PyG", "theirs", ""),
            ("difference", "difference", ""), ("within what is allowed", "is_within", ""),
        ),
    ]  # fmt: skip


def kills(result: Result) -> Table:
    """Killed stores and samplers of a run on one machine."""
    return figures(
        result,
        ("stores and samplers killed at random", "trials", ""),
        ("of these, without an error in time, or with something left", "failed", ""),
        ("the slowest error that names them", "slowest_s", "s"),
        ("the median", "median_s", "s"),
    )


def faults(result: Result) -> Table:
    """The campaign against runs on a cluster."""
    return [
        *figures(
            result,
            ("faults in real runs", "summary/trials", ""),
            ("of these, not as they should be", "summary/failed", ""),
            ("ended as the undisturbed run, to the last bit", "summary/same_to_the_last_bit", ""),
            ("went on with fewer machines", "summary/on_other_machines", ""),
            ("largest difference of these", "summary/largest_difference", ""),
            ("longest time without a message or an iteration", "summary/longest_silence_s", "s"),
            ("left behind", "summary/left_behind", ""),
        ),
        *by_name(
            result, "summary/recovery_s", "from the kill to training as before",
            ("median", "median", "s"), ("most", "most", "s"),
        ),
    ]  # fmt: skip


def training_for_keeps(result: Result) -> Table:
    """Parameter servers, checkpoints, recovery and inference."""
    times_s: Mapping[str, list[float] | None] = dig(result, "recovery_s") or {}
    most_s = {f"most_{kind}": max(all_) for kind, all_ in times_s.items() if all_}
    return figures(
        {**result, **most_s},
        ("gradients with one parameter server beside one process", "gradient_difference/1", ""),
        ("the same with two", "gradient_difference/2", ""),
        ("parameters at the end, two servers beside a ring", "ring_difference/2", ""),
        ("time that checkpoints every 100 steps took", "checkpoint/cost_share", "%"),
        ("checkpoints cut at some byte", "checkpoint_cuts/tried", ""),
        ("of these, loaded", "checkpoint_cuts/loaded", ""),
        ("until training went on after a killed sampler, at most", "most_sampler", "s"),
        ("the same for a store of 10 million nodes", "most_store", "s"),
        ("inference for 1 million nodes, PyG's time over ours", "inference/ratio", "x"),
        ("its memory", "inference/peak_bytes/ours", "bytes"),
        ("memory of PyG's", "inference/peak_bytes/theirs", "bytes"),
        ("largest difference to PyG's", "inference/max_difference", ""),
        ("a real Prometheus agrees with the trace", "checks/prometheus/passed", ""),
        ("every open port is documented and refuses strangers", "checks/ports/passed", ""),
    )  # fmt: skip


def first_hour(result: Result) -> Table:
    """What a stranger waits for."""
    return [
        *figures(
            result,
            ("the wheel", "wheel_bytes", "bytes"),
            ("`pip install` of the base, without a cache, at most", "base_install_s", "s"),
            ("the same with torch and all of `[train]`", "train/train_install_s", "s"),
            ("of that, torch", "train/torch_install_s", "s"),
            ("... in Python", "train/python", ""),
            ("... what it takes on disk, with NVIDIA's libraries if torch has them",
             "train/venv_bytes", "bytes"),
            ("a report from the installed wheel", "has_report", ""),
        ),
        *by_name(
            result, "pythons", "Python",
            ("`pip install`", "base_install_s", "s"),
            ("`import headrace`", "import_s", "s"),
            ("`python -c pass`", "bare_python_s", "s"),
            ("`headrace --help`", "help_s", "s"),
            ("first rehearsal", "first_simulation_s", "s"),
            ("the next", "next_simulation_s", "s"),
            ("first plan", "first_plan_s", "s"),
            ("the next", "next_plan_s", "s"),
            ("`explain`", "explain_s", "s"),
        ),
    ]  # fmt: skip


def closed_loop(result: Result) -> Table:
    """Three ways to place and share on a shaped testbed."""
    ways = (("DistDGL's", "distdgl"), ("DGTP's", "dgtp"), ("ours", "ours"))
    return [
        *by_name(
            result, "modes", "setting",
            *((f"{name}, per iteration", f"iteration_s/{way}", "s") for name, way in ways),
            *((f"{name}, predicted", f"predicted_s/{way}", "s") for name, way in ways),
            ("saved over DistDGL's", "gain/distdgl/measured", "%"),
            ("predicted", "gain/distdgl/predicted", "%"),
            ("saved over DGTP's", "gain/dgtp/measured", "%"),
            ("predicted", "gain/dgtp/predicted", "%"),
            ("busiest card over iperf3, ours", "goodput_over_iperf/ours", ""),
            ("cores in use", "cpu_share", "%"),
        ),
        *figures(
            result,
            ("a card is halved: from there to the end", "drift/without/since_slow_s", "s"),
            ("the same with planning anew", "drift/with/since_slow_s", "s"),
            ("shares of three flows, largest relative error", "policy_shares/largest_error", "%"),
            ("strict priority: the first flow's share", "policy_shares/strict_top", "%"),
        ),
    ]  # fmt: skip


def speeds(result: Result) -> Table:
    """Plans for machines of different speed."""
    return figures(
        result,
        ("trainers of 30 and 90 ms, our plan", "cases/slow-trainers/ours_s", "s"),
        ("the same, `etp`", "cases/slow-trainers/etp_s", "s"),
        ("random clusters", "random/clusters", ""),
        ("our time over the best of all placements, mean", "random/over_best_mean", "x"),
        ("the same, worst", "random/over_best_worst", "x"),
        ("time saved by batch shares, speeds 1:2", "shares/1:2/saved", "%"),
        ("the same, speeds 1:4", "shares/1:4/saved", "%"),
        ("random clusters where shares are worse than equal ones", "shares/worse_than_equal", ""),
        ("our shares over a grid search, worst", "shares/over_grid_worst", "x"),
        ("time saved by shares on a testbed, CPU quotas 1:2", "shares_for_real/saved", "%"),
        ("accuracy with shares minus equal, points", "shares_for_real/points_difference", ""),
        ("curves of batch growth: nodes, worst error between", "curves/worst_between/nodes", "%"),
        ("the same at twice the largest size", "curves/worst_twice/nodes", "%"),
        ("seconds to search 64 machines", "search_s/64 machines", "s"),
        ("the same with the prediction", "search_s/plan_s/64 machines", "s"),
        (
            "remote rows of `plan --graph` over local-first seeds",
            "owner/over_local_first_worst",
            "x",
        ),
        ("seeds per partition, planned and assigned: largest difference", "owner/seeds_apart", ""),
        ("six shaped machines: time saved against uniform seeds", "mode_b/saved", "%"),
        ("the same, bytes from stores", "mode_b/bytes_saved", "%"),
        ("input nodes saved by clusters, largest of five graphs", "clusters/most_nodes_saved", "%"),
        ("their accuracy within noise", "clusters/is_safe", ""),
        ("symmetric jobs compared with exact fractions", "ties/instances", ""),
        ("of these, jobs that differ", "ties/differing", ""),
        ("a CPU quota halved in mid-run: time saved by planning again", "drift/saved", "%"),
    )


def beside(result: Result) -> Table:
    """Two commits beside each other."""
    rows = []
    for name, each in result.get("benchmarks", {}).items():
        took = [f"{median(each['seconds'][side]):.0f} s" for side in ("before", "after")]
        rows.append((name, *took, str(each["num_figures"]), str(len(each["outside"]))))
    return table(("benchmark", "before", "after", "figures", "that differ by more than 10 %"), rows)


def campaign(result: Result) -> Table:
    """Tests that a change's checks leave out."""
    counts = [(name, name, "") for name in ("passed", "failed", "skipped")]
    return figures(result, *counts, ("time", "seconds", "s"))


def as_it_is(result: Result) -> Table:
    """All figures of a file without a description."""
    rows: list[tuple[str, str]] = []

    def add(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                add(f"{name} / {key}" if name else str(key), inner)
        elif value is not None and not (isinstance(value, Sequence) and not value):
            rows.append((name.replace("_", " "), show(value)))

    add("", {key: value for key, value in result.items() if key not in _NOT_FIGURES})
    return table(("what", "found"), rows[:_MOST_ROWS])


SECTIONS: Mapping[str, tuple[str, Callable[[Result], Table]]] = {
    "first_hour": ("The first hour", first_hour),
    "planner": ("Plans", planner),
    "speeds": ("Machines of different speed", speeds),
    "simulator": ("Rehearsals", simulator),
    "theory": ("Theory", theory),
    "paper_figures": ("Beside the paper's schedulers", paper),
    "graph_data": ("Graphs on disk", graph_data),
    "data_path": ("From stores to batches", data_path),
    "transports": ("Transports", transports),
    "same_mathematics": ("The same accuracy as PyG", same_mathematics),
    "converted": ("Converted PyG scripts", converted),
    "cluster_runtime": ("Runs on a cluster", cluster_runtime),
    "kills": ("Killed processes, one machine", kills),
    "faults": ("Faults, on a cluster", faults),
    "crowds": ("Crowds of silent connections", crowds),
    "fuzz": ("Wrong requests", fuzz),
    "bounds": ("Indices of kernels", bounds),
    "simulation": ("Simulated runs", simulation),
    "simulation_mutants": ("Mistakes planted for simulated runs", planted),
    "training_for_keeps": ("Training for keeps", training_for_keeps),
    "closed_loop": ("The closed loop, on a shaped testbed", closed_loop),
    "traffic": ("Bytes between machines", traffic),
    "memory": ("Memory before a run", memory),
    "full_graph": ("Full-graph training", full_graph),
    "campaign": ("Long tests", campaign),
    "beside": ("Quick benchmarks of two commits", beside),
}
