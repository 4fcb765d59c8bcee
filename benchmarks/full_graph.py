"""Full-graph training: gradients, bytes and accuracy of parts against one process.

    python benchmarks/full_graph.py --json --output benchmarks/results/full_graph.json
    python benchmarks/full_graph.py --only bytes accuracy --json
    python benchmarks/full_graph.py --quick --json

Trainers are processes of this machine with a thread each. Graphs have 60 % training nodes, and are
partitioned by `headrace partition` with its default method.

- `gradients`: relative error of the gradients of the third step, of the trainer that is furthest
  from PyG in one process. `parts` is by number of parts in double precision, where rounding cannot
  hide an error. In single precision, `rounding` is the error of the fewest parts and
  `rounding_alone` that of one process, both from the gradients in double precision. Models have 2
  layers, 64 hidden values and batch normalisation, and no dropout; `RGCN` is RGCNConv with three
  random relations, and `typed RGCN` is headrace's on IMDB.
- `bytes`: payload of an epoch between trainers, counted by them, and computed from the partition:
  rows (of the vertex cover for GCN and SAGE, of the halo for GAT) times exchanged values times 4,
  forward and backward; `once` is the payload of features and degrees, in the first epoch only.
  `halo` is the number of halo rows per node.
- `cover`: rows with partial sums, the minimum vertex cover of the edges between two parts, over
  halo rows, at 16 parts. `received` and `sent` are those of the part with most, in rows, and
  `received_balance` and `sent_balance` are over the mean.
- `features`: layers that add up rows, divided by features: what the busiest of 4 and 16 parts sends
  or receives in the forward pass of a layer, in rows of 64 values, of the `halo`, the `cover` and
  the `columns`, and whether these are fewest (`features_win`); `bytes` of an epoch of GCN on 4
  trainers, counted and computed; `errors` of gradients in double precision on Amazon-Computers.
- `balance`: remote nodes of parts at 16 parts (`total`; `received` and `sent` of the fullest, and
  over the mean): of ranges of ids (`chunks`), of METIS, of METIS with G3's swaps, and of
  `headrace partition`; edges count in both directions.
- `accuracy`: test accuracy in percent after training with dropout 0.5 on 4 parts, and of PyG in one
  process; `points` is their difference, with its standard error over seeds. `is_as_alone` says
  whether it is within 0.3 points or two standard errors. `imdb` is a typed RGCN.
- `speed`: seconds per epoch, one thread per process: of PyG, of the prepared model in one process,
  and of two trainers.
- `approximate`: bytes, time and test accuracy with rows in 8 and 4 bits, stale rows, and boundary
  sampling (`bns`, a tenth of the halo rows, whose bytes are computed), and `gain` over exact.
- `memory`: peaks of GAT on Amazon-Computers; `limit_bytes` is half of what its activations need.
- `kills`: runs of two trainers, one of which is killed; how many end with the parameters of a run
  that was not disturbed.
- `parallelism`: seconds per epoch of four trainers on shaped machines, with rows in bins and
  divided by features, of a graph whose nodes are in random parts; `planned` is what a plan has.
- `testbed`: seconds per epoch of a GraphSAGE on four shaped machines, without overlap, with sums of
  own rows meanwhile, with row groups, with three bins of the rows that others need, and with bins
  that are sent in matchings; bytes on the wire over the payload, and the fullest card in an
  exchange over iperf3. `exchanges` are random ones, sent at once and in matchings, over the lower
  bound. Needs root, iproute2, iperf3 and `headrace[shape]`.

The last line is one JSON object. `--quick` has null for the last six.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.full_graph_balance import measure_balance
from benchmarks.full_graph_features import measure_features
from benchmarks.full_graph_more import (
    measure_approximate,
    measure_kills,
    measure_memory,
    measure_speed,
)
from benchmarks.full_graph_testbed import measure_parallelism, measure_testbed
from benchmarks.full_graph_trainers import (
    BASIC,
    HIDDEN,
    alone,
    gradients_of,
    graph_of,
    in_double,
    in_trainers,
    learn,
    make,
    shared,
    step,
    width_of,
)
from benchmarks.machine import describe_machine
from benchmarks.traffic import EDGE, GRAPHS, NODE
from headrace.graph.build.cover_sizes import CoverSizes, cover_sizes
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.training.full_graph.full_graph import FullGraph

LARGEST_ERROR, POINTS = 1e-6, 0.3
NUM_EPOCHS, NUM_SEEDS, APPROXIMATE_SEEDS = 60, 10, 5
PARTS = (
    "gradients", "bytes", "cover", "features", "balance", "accuracy", "speed", "approximate",
    "memory", "kills", "parallelism", "testbed",
)  # fmt: skip
QUICK = ("gradients", "bytes", "cover", "features", "balance", "accuracy")
NUM_COVERED = 16


def errors_of(
    data: FullGraph, graph: PartitionedGraph, exact: dict[str, torch.Tensor], is_double: bool
) -> dict[str, float]:
    """Relative errors of a trainer's gradients, by model."""
    (batch,), errors = data, {}
    for name, whole in exact.items():
        model = make(graph, name, 0)
        own = in_double(batch) if is_double else batch
        model = model.double() if is_double else model
        model = shared(model, data)
        errors[name] = error_of(gradients_of(model, name, own), whole)
    return errors


def error_of(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative error of gradients."""
    return float((found.double() - exact).norm() / exact.norm())


def measure_gradients(names: Sequence[str], counts: Sequence[int], scratch: Path) -> dict[str, Any]:
    """Errors by graph, model and number of parts."""
    found: dict[str, Any] = {}
    for graph_name in names:
        models = ["typed RGCN"] if graph_name == "imdb" else [*BASIC, "RGCN"]
        found[graph_name] = {name: {"parts": {}} for name in models}
        for num in counts:
            graph = graph_of(graph_name, num, scratch)
            whole = alone(graph)
            double = in_double(whole)
            exact = {name: gradients_of(make(graph, name, 0), name, double) for name in models}
            for is_double in (True, False) if num == counts[0] else (True,):
                work = partial(errors_of, graph=graph, exact=exact, is_double=is_double)
                each = in_trainers(graph, num, work)
                for name in models:
                    worst, own = max(errors[name] for errors in each), found[graph_name][name]
                    if is_double:
                        own["parts"][num] = worst
                        continue
                    single = gradients_of(make(graph, name, 0), name, whole)
                    own |= {"rounding": worst, "rounding_alone": error_of(single, exact[name])}
        print(f"gradients {graph_name}: {json.dumps(found[graph_name])}", file=sys.stderr)
    errors = [
        e for graph in found.values() for own in graph.values() for e in own["parts"].values()
    ]
    return {"graphs": found, "largest": max(errors), "is_exact": max(errors) < LARGEST_ERROR}


def computed_bytes(graph: PartitionedGraph, name: str, sizes: CoverSizes) -> tuple[int, int]:
    """Payload of an epoch, and once."""
    sums, halo = int(sizes.total.sum()), int(sizes.halo.sum())
    if name == "GAT":
        # Rows and their attention.
        return halo * (HIDDEN + 1 + graph.num_classes + 1) * 2 * 4, 0
    if name == "GCN":
        # Degrees of halo nodes.
        return sums * (HIDDEN + graph.num_classes) * 2 * 4, halo * 4
    # GraphSAGE adds up features.
    return sums * HIDDEN * 2 * 4, sums * width_of(graph) * 4


def measure_bytes(names: Sequence[str], num: int, scratch: Path) -> dict[str, Any]:
    """Payload by graph and model, counted and computed."""
    found: dict[str, Any] = {}
    for graph_name in names:
        graph = graph_of(graph_name, num, scratch)
        sizes = cover_sizes(graph, list(range(num)), EDGE)
        found[graph_name] = {"halo": float(sizes.halo.sum() / graph.num_nodes_of(NODE))}
        for name in ("GCN", "SAGE", "GAT"):

            def work(
                data: FullGraph, graph: PartitionedGraph = graph, name: str = name
            ) -> list[int]:
                model, sent = shared(make(graph, name, 0), data), [0]
                for batch in [*data, *data, *data]:
                    step(model, name, batch)
                    sent.append(data.sent_bytes)
                return sent

            sent = np.sum(in_trainers(graph, num, work), axis=0)
            per_epoch, once = computed_bytes(graph, name, sizes)
            found[graph_name][name] = {
                "counted": int(sent[3] - sent[2]),
                "computed": per_epoch,
                "counted_once": int(sent[1] - (sent[3] - sent[2])),
                "computed_once": once,
            }
        print(f"bytes {graph_name}: {json.dumps(found[graph_name])}", file=sys.stderr)
    kinds = [each for graph in found.values() for each in graph.values() if isinstance(each, dict)]
    is_exact = all(
        each["counted"] == each["computed"] and each["counted_once"] == each["computed_once"]
        for each in kinds
    )
    return {"trainers": num, "graphs": found, "is_exact": is_exact}


def measure_cover(names: Sequence[str], num: int, scratch: Path) -> dict[str, Any]:
    """Rows of halos and covers by graph."""
    found: dict[str, Any] = {}
    for graph_name in names:
        graph = graph_of(graph_name, num, scratch)
        sizes = cover_sizes(graph, list(range(num)), EDGE)
        found[graph_name] = {
            "rows": float(sizes.total.sum() / max(sizes.halo.sum(), 1)),
            "halo": spread_of(sizes.halo),
            "cover": spread_of(sizes.total),
        }
        print(f"cover {graph_name}: {json.dumps(found[graph_name])}", file=sys.stderr)
    return {"parts": num, "graphs": found}


def spread_of(rows: np.ndarray) -> dict[str, float]:
    """Rows by receiver and sender: of the fullest part, and over the mean."""
    received, sent = rows.sum(1), rows.sum(0)
    return {
        "received": int(received.max()),
        "received_balance": float(received.max() / max(received.mean(), 1e-9)),
        "sent": int(sent.max()),
        "sent_balance": float(sent.max() / max(sent.mean(), 1e-9)),
    }


def measure_accuracy(
    names: Sequence[str], num: int, seeds: int, epochs: int, scratch: Path
) -> dict[str, Any]:
    """Accuracy of parts and of one process, by graph."""
    found: dict[str, Any] = {}
    for graph_name in names:
        graph = graph_of(graph_name, num, scratch)

        model_name = "typed RGCN" if graph_name == "imdb" else "GCN"

        def work(
            data: FullGraph, graph: PartitionedGraph = graph, name: str = model_name
        ) -> list[np.ndarray]:
            (batch,) = data
            rank = dist.get_rank()
            models = (shared(make(graph, name, seed, 0.5), data) for seed in range(seeds))
            return [
                learn(model, batch, epochs, 1000 * seed + rank, name)
                for seed, model in enumerate(models)
            ]

        counts = np.sum(in_trainers(graph, num, work), axis=0)
        ours = (100 * counts[:, 0] / counts[:, 1]).tolist()
        whole, theirs = alone(graph), []
        for seed in range(seeds):
            model = make(graph, model_name, seed, 0.5)
            right, all_nodes = learn(model, whole, epochs, seed, model_name)
            theirs.append(100 * float(right / all_nodes))
        gains = [a - b for a, b in zip(ours, theirs, strict=True)]
        error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
        points = statistics.mean(gains)
        found[graph_name] = {
            "parts": statistics.mean(ours),
            "alone": statistics.mean(theirs),
            "points": points,
            "standard_error": error,
            "is_as_alone": abs(points) <= max(POINTS, 2 * error),
        }
        print(f"accuracy {graph_name}: {json.dumps(found[graph_name])}", file=sys.stderr)
    return {"trainers": num, "epochs": epochs, "seeds": seeds, "graphs": found}


def add_graphs(found: dict[str, Any], known: dict[str, Any]) -> None:
    """Add the other graphs of a result file that were measured with the same settings."""
    for name in ("cover", "accuracy", "speed", "approximate"):
        own, other = ({**(each.get(name) or {}), "graphs": None} for each in (found, known))
        if found.get(name) and own == other:
            found[name]["graphs"] = known[name]["graphs"] | found[name]["graphs"]
    if found.get("approximate"):
        rows = found["approximate"]["graphs"].values()
        found["approximate"]["worst_int8"] = min(row["int8"]["gain"] for row in rows)


def main() -> int:
    """Measure, print a line per graph and one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument(
        "--graphs", nargs="+", choices=[*GRAPHS, "imdb"], help="default: all real graphs"
    )
    parser.add_argument("--quick", action="store_true", help="one graph, two seeds, few epochs")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--output", type=Path, help="result file to update")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # takes the testbed down
    # Trainers are forked: no threads of OpenMP may run before.
    torch.set_num_threads(1)
    names = args.graphs or [name for name in GRAPHS if name != "generated"]
    seeds, epochs, exact = NUM_SEEDS, NUM_EPOCHS, ["pubmed", "amazon_computers", "imdb"]
    if args.quick:
        names, seeds, epochs, exact = ["pubmed"], 2, 15, ["pubmed"]
    parts = args.only or (QUICK if args.quick else PARTS)
    began_s = time.perf_counter()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        scratch = Path(folder)
        if "gradients" in parts:
            found["gradients"] = measure_gradients(
                exact, (4,) if args.quick else (2, 3, 4), scratch
            )
        if "bytes" in parts:
            found["bytes"] = measure_bytes(names, 4, scratch)
        if "cover" in parts:
            found["cover"] = measure_cover(names, 4 if args.quick else NUM_COVERED, scratch)
        if "features" in parts:
            every = (4,) if args.quick else (4, NUM_COVERED)
            six = args.graphs or (names if args.quick else [*names, "generated"])
            found["features"] = measure_features(
                six, every, (4,) if args.quick else (2, 3, 4), scratch
            )
        if "balance" in parts:
            six = args.graphs or (names if args.quick else [*names, "generated"])
            found["balance"] = measure_balance(six, 4 if args.quick else NUM_COVERED, scratch)
        if "accuracy" in parts:
            both = args.graphs or (names if args.quick else [*names, "imdb"])
            found["accuracy"] = measure_accuracy(both, 4, seeds, epochs, scratch)
        if "speed" in parts:
            timed = [each for each in names if each != "coauthor_physics"]
            found["speed"] = measure_speed(timed, ("GCN", "SAGE", "GAT"), scratch)
        if "approximate" in parts:
            six = args.graphs or [*names, "generated"]
            found["approximate"] = measure_approximate(six, 4, APPROXIMATE_SEEDS, epochs, scratch)
        if "memory" in parts:
            found["memory"] = measure_memory(scratch)
        if "kills" in parts:
            found["kills"] = measure_kills(scratch)
        if "parallelism" in parts:
            found["parallelism"] = measure_parallelism(scratch)
        if "testbed" in parts:
            found["testbed"] = measure_testbed(scratch)
    if args.output is None:
        found = {**dict.fromkeys(PARTS), **found}
    document = {
        **found,
        "seconds": round(time.perf_counter() - began_s, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/full_graph.py " + " ".join(sys.argv[1:]),
    }
    known = json.loads(args.output.read_text()) if args.output and args.output.exists() else {}
    add_graphs(document, known)
    if args.output:
        commands = [*known.get("commands", []), document.pop("command")]
        document = {**known, **document, "commands": list(dict.fromkeys(commands))}
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
