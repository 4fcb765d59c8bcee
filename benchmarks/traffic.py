"""Bytes between machines and accuracy with encoded features and other draws of neighbours.

    python benchmarks/traffic.py --json --output benchmarks/results/traffic.json
    python benchmarks/traffic.py --live --json --output benchmarks/results/traffic.json
    python benchmarks/traffic.py --quick --json

Six graphs in four partitions (METIS), each with a trainer whose seeds are local: GraphSAGE 2 x 32,
fan-out 5,5; the four gradients of a step are averaged, as in a run. `bytes` are those of feature
rows that belong to another partition, over `float32` rows of uniform draws without a cache:

- `exact`: features stored by `auto`; batches must be equal to the last bit; `cached` is with a
  cache of a tenth of the rows;
- `safe`: `int8` and `far=0.25`; `cached` with a twentieth;
- `least`: `int4` and `far=0.125`;
- `labor`: `float32` and draws that the nodes of a hop share.

Scores of remote nodes and features, on `float32` rows: `dgs` by explanation, as
published (every 30 iterations, 85 % of the features), and `dgs_shuffled` with the scores of its
nodes in random order; `bytes` are those after the first explanation, `explanation_cpu` the CPU time
of an explanation over that of the iterations it serves, and `explanation_rows` the bytes of rows
that explanations fetch once over those of the plain iterations after the first explanation.

Caches are those of samplers and start empty: `cached` and `hit_rate` are those of the fourth epoch,
and `predicted_hit_rate` is that of a plan.

`points` are percentage points of test accuracy above the plain run with the same seed, with the
standard error over seeds. `live` (with `--live` only; needs root and iproute2) trains mode b of the
closed loop on a shaped testbed, with the plan of today and with each choice. `far_cost` is the time
of draws with `far=0.25` over uniform ones, `labor_cost` that of LABOR by graph, and `codec` the
speed of one core in GB of `float32` per second. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.nn import GraphSAGE

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import headrace
from benchmarks.batch_sources import DATA
from benchmarks.machine import describe_machine
from benchmarks.traffic_live import measure_live
from benchmarks.traffic_scores import ScoreGuide
from benchmarks.traffic_speeds import codec_speeds, ratio_of_times
from headrace.core.traffic import Traffic
from headrace.graph.format.manifest import ColumnInfo
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.format.row_codec import SparseRows
from headrace.graph.loader.neighbor_loader import NeighborLoader
from headrace.graph.sampler_worker.feature_cache import FeatureCache, memory_for_rows
from headrace.graph.sampling.hop import LocalSource, Rule
from headrace.graph.sampling.local_edges import open_edge_parts
from headrace.graph.sampling.neighbor_sampler import BatchKey, Sampler
from headrace.graph.schema import EdgeTable, GraphSource
from headrace.graph.sources.resolve import open_source
from headrace.profiling.graph_survey import sample_cache

NUM_PARTS, FANOUT, BATCH_SIZE = 4, [5, 5], 64
LIVE_STEPS, EVERY = 45, 30
NODE, EDGE = "node", ("node", "to", "node")

GRAPHS = {
    "pubmed": "planetoid/pubmed.npz",
    "coauthor_cs": "coauthor_cs/ms_academic_cs.npz",
    "coauthor_physics": "coauthor_physics/ms_academic_phy.npz",
    "debian": "debian_bookworm/bookworm.npz",
    "amazon_computers": "amazon_computers/amazon_electronics_computers.npz",
    "generated": "generated:nodes=20000,edges=500000,features=64,signal=0.2",
}
UNIFORM, LABOR = Rule(), Rule(labor=True)
CHOICES: dict[str, tuple[str | None, Rule, float]] = {
    "plain": (None, UNIFORM, 0.0),
    "exact": ("auto", UNIFORM, 0.1),
    "safe": ("int8", Rule(far=0.25), 0.05),
    "least": ("int4", Rule(far=0.125), 0.0),
    "labor": (None, LABOR, 0.0),
}
"""Form of the features, draws, and the fraction of rows that is cached in `cached`."""
SCORES = {"dgs": "explained", "dgs_shuffled": "shuffled"}


def source_of(name: str) -> GraphSource:
    """A graph with 60 % training and 20 % test nodes, drawn at random."""
    path = GRAPHS[name]
    source = open_source(path if ":" in path else str(DATA / path), 0)
    (table,) = source.nodes
    order = np.random.default_rng(0).permutation(table.num_nodes)
    cuts = np.split(order, [int(0.6 * len(order)), int(0.8 * len(order))])
    splits = {
        split: np.sort(ids) for split, ids in zip(("train", "val", "test"), cuts, strict=True)
    }
    # All relations of a graph are one here.
    edges = EdgeTable(
        EDGE,
        sum(each.num_edges for each in source.edges),
        lambda: (ends for each in source.edges for ends in each.chunks()),
    )
    return replace(source, nodes=(replace(table, splits=splits),), edges=(edges,))


class Counter:
    """Counts the bytes of rows from other partitions."""

    def __init__(self, graph: PartitionedGraph) -> None:
        self._graph = graph
        self._sizes = row_sizes(graph)
        self.bytes = 0.0

    def count(self, part: int, n_id: np.ndarray, fraction: float = 1.0) -> None:
        """Count the rows of a batch of a partition's trainer, or a fraction of each."""
        ids = self._graph.to_new(NODE, n_id)
        away = ids[self._graph.owner(NODE, ids) != part]
        self.bytes += fraction * float(self._sizes[away].sum())


def use_cache(graph: PartitionedGraph, rule: Rule, cached: float) -> dict[str, float]:
    """Hit rate of samplers' caches in their fourth epoch, what they save, and what is predicted."""
    num, sizes = graph.num_nodes_of(NODE), row_sizes(graph)
    # Which rows are cached depends on their size, not on their contents.
    size = math.ceil(graph.part(0).column_info(NODE, "x").row_bytes)
    info = ColumnInfo(name="x", dtype="uint8", shape=(size,))
    memory = memory_for_rows(info, num, int(cached * num))
    sampler = sampler_of(graph, rule)
    rows = hits = 0
    all_bytes = missed_bytes = 0.0
    for number in range(NUM_PARTS):
        part, cache = graph.part(number), FeatureCache(info, num, memory)
        seeds = part.start(NODE) + np.asarray(part.split(NODE, "train"))
        for epoch in range(4):
            order = np.random.default_rng(epoch).permutation(seeds)
            for batch, begin in enumerate(range(0, len(order), BATCH_SIZE)):
                chosen, key = order[begin : begin + BATCH_SIZE], BatchKey(1, epoch, batch)
                ids = sampler.sample_hetero({NODE: chosen}, FANOUT, key).node[NODE]
                away = ids[graph.owner(NODE, ids) != number]
                _, misses = cache.lookup(away)
                missed = away[misses]
                if len(missed):
                    cache.admit(missed, np.zeros((len(missed), size), np.uint8))
                if epoch == 3:
                    rows, hits = rows + len(away), hits + len(away) - len(missed)
                    all_bytes += float(sizes[away].sum())
                    missed_bytes += float(sizes[missed].sum())
    curve = sample_cache(graph, FANOUT, BATCH_SIZE, traffic=Traffic(far=rule.far))
    weights = [len(graph.part(number).split(NODE, "train")) for number in range(NUM_PARTS)]
    whole = graph.part(0).column_info(NODE, "x")
    memory = memory_for_rows(whole, num, int(cached * num))
    return {
        "cached": missed_bytes / max(all_bytes, 1.0),
        "hit_rate": hits / max(rows, 1),
        "predicted_hit_rate": curve.hit_rate_at(memory, np.array(weights)),
    }


def sampler_of(graph: PartitionedGraph, rule: Rule) -> Sampler:
    """A sampler of all partitions."""
    source, num_nodes = LocalSource(open_edge_parts(graph)), {NODE: graph.num_nodes_of(NODE)}
    offsets = {NODE: graph.offsets(NODE)}
    return Sampler(source, num_nodes, graph.edge_types, rule, offsets)


def row_sizes(graph: PartitionedGraph) -> np.ndarray:
    """Bytes of each row as it is stored."""
    return np.concatenate([_row_bytes(graph, part) for part in range(NUM_PARTS)])


def _row_bytes(graph: PartitionedGraph, part: int) -> np.ndarray:
    rows = graph.part(part).stored_rows(NODE, "x")
    if isinstance(rows, SparseRows):
        return 2 * np.diff(rows.starts)
    return np.full(len(rows), rows.nbytes // max(len(rows), 1))


def draw_cost(graph: PartitionedGraph, rule: Rule, rounds: int) -> float:
    """Time of draws over that of uniform ones."""
    part = graph.part(0)
    some = part.start(NODE) + np.asarray(part.split(NODE, "train"))[:1024]
    return ratio_of_times([sampler_of(graph, each) for each in (UNIFORM, rule)], some, rounds)


def loaders(graph: PartitionedGraph, seed: int, rule: Rule) -> list[NeighborLoader]:
    """A loader per partition, with its own training nodes."""
    made = []
    for number in range(NUM_PARTS):
        part = graph.part(number)
        seeds = torch.from_numpy(np.sort(part.original_ids(NODE)[part.split(NODE, "train")]))
        options: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": seed}
        made.append(
            NeighborLoader(graph, FANOUT, seeds.long(), far=rule.far, labor=rule.labor, **options)
        )
    return made


def forever(loader: NeighborLoader) -> Iterator[Any]:
    """Batches of all epochs."""
    while True:
        yield from loader


def train(
    graph: PartitionedGraph,
    seed: int,
    rule: Rule,
    steps: int,
    counter: Counter,
    score: str | None = None,
) -> tuple[float, ScoreGuide | None]:
    """Train a model on local seeds of all partitions; the test accuracy in percent, and scores."""
    torch.manual_seed(seed)
    info = graph.manifest.nodes[0]
    assert info.num_classes is not None
    (width,) = graph.part(0).column_info(NODE, "x").shape
    model = GraphSAGE(width, 32, num_layers=2, out_channels=info.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    made = loaders(graph, seed, rule)
    guide = None if score is None else ScoreGuide(graph, made, score)
    batches = [forever(loader) for loader in made]
    for step in range(steps):
        if guide is not None:
            guide.before_step(step, model)
        optimizer.zero_grad()
        for part, own in enumerate(batches):
            batch = next(own)
            fraction = 1.0 if guide is None else guide.fetched(part, batch)
            if fraction is not None:
                counter.count(part, batch.n_id.numpy(), fraction)
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            target = batch.y[: batch.batch_size]
            (torch.nn.functional.cross_entropy(out, target) / NUM_PARTS).backward()
        optimizer.step()
    return evaluate(model, graph), guide


@torch.no_grad()
def evaluate(model: torch.nn.Module, graph: PartitionedGraph) -> float:
    """Test accuracy with all neighbours and the stored features."""
    parts = [graph.part(number) for number in range(NUM_PARTS)]
    x = torch.from_numpy(np.concatenate([part.column(NODE, "x") for part in parts])).float()
    y = np.concatenate([part.column(NODE, "y") for part in parts])
    sources = np.concatenate([part.indices(EDGE) for part in parts]).astype(np.int64)
    degrees = np.concatenate([np.diff(part.indptr(EDGE)) for part in parts])
    test = np.concatenate([part.start(NODE) + part.split(NODE, "test") for part in parts])
    model.eval()
    # A sparse matrix: messages along all edges would take 17 GB of the widest graph.
    indptr = torch.from_numpy(np.append(0, np.cumsum(degrees)))
    ones = torch.ones(len(sources))
    edges = torch.sparse_csr_tensor(indptr, torch.from_numpy(sources), ones, (len(x), len(x)))
    found = model(x, edges).argmax(1).numpy()
    return 100 * float(np.mean(found[test] == y[test]))


def are_equal(left: PartitionedGraph, right: PartitionedGraph, num_batches: int) -> bool:
    """Whether the first batches of two graphs are equal to the last bit."""
    for one, other in zip(loaders(left, 7, UNIFORM), loaders(right, 7, UNIFORM), strict=True):
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            names = ("n_id", "edge_index", "x", "y")
            if not all(torch.equal(a[name], b[name]) for name in names):
                return False
            if number + 1 == num_batches:
                break
    return True


def measure(
    name: str, seeds: int, steps: int, scratch: Path, with_scores: bool = True
) -> dict[str, Any]:
    """All choices on one graph."""
    source, graphs = source_of(name), {}
    for form in dict.fromkeys(form for form, _, _ in CHOICES.values()):
        folder = scratch / f"{name}-{form or 'plain'}"
        graphs[form] = headrace.partition(source, folder, parts=NUM_PARTS, features=form)
    found: dict[str, Any] = {}
    accuracies: dict[str, list[float]] = {}
    plain_bytes = 0.0
    for choice, (form, rule, cached) in CHOICES.items():
        graph, counter = graphs[form], Counter(graphs[form])
        # Equal batches give equal models: one seed is enough to count.
        num_seeds = 1 if choice == "exact" else seeds
        runs = [train(graph, seed, rule, steps, counter)[0] for seed in range(num_seeds)]
        accuracies[choice] = runs
        per_step = counter.bytes / num_seeds / steps
        plain_bytes = plain_bytes or per_step
        info = graph.part(0).column_info(NODE, "x")
        found[choice] = {
            "form": info.dtype if info.encoding is None else info.encoding.kind,
            "bytes": per_step / plain_bytes,
            "disk_mb": sum(file.bytes for file in graph.manifest.files.values()) / 1e6,
            "accuracy": statistics.mean(runs),
        }
        if cached:
            used = use_cache(graph, rule, cached)
            used["cached"] *= found[choice]["bytes"]
            found[choice] |= used
        if choice == "exact":
            found[choice]["is_equal"] = are_equal(graphs[None], graph, 5)
            found[choice]["is_equal"] &= runs[0] == accuracies["plain"][0]
        elif choice != "plain":
            found[choice] |= compare(runs, accuracies["plain"])
        print(f"{name} {choice}: {json.dumps(found[choice])}", file=sys.stderr, flush=True)
    if with_scores:
        found |= measure_scores(name, graphs[None], seeds, steps, plain_bytes, accuracies)
    return found


def compare(runs: Sequence[float], plain: Sequence[float]) -> dict[str, float | None]:
    """Percentage points above the plain runs, with the standard error over seeds."""
    gains = [a - b for a, b in zip(runs, plain, strict=False)]
    error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else None
    return {"points": statistics.mean(gains), "standard_error": error}


def measure_scores(
    name: str,
    graph: PartitionedGraph,
    seeds: int,
    steps: int,
    plain_bytes: float,
    accuracies: dict[str, list[float]],
) -> dict[str, Any]:
    """DGS and its placebo on one graph; `plain_bytes` are those of a step."""
    found: dict[str, Any] = {}
    for choice, score in SCORES.items():
        counter, runs, cpu_s, train_s, rounds, fetched = Counter(graph), [], 0.0, 0.0, 0, 0.0
        for seed in range(seeds):
            began_s = time.process_time()
            accuracy, guide = train(graph, seed, UNIFORM, steps, counter, score)
            assert guide is not None
            train_s += time.process_time() - began_s - guide.cpu_s
            cpu_s, rounds = cpu_s + guide.cpu_s, rounds + guide.num_rounds
            fetched += guide.fetched_bytes
            runs.append(accuracy)
        served = steps - EVERY
        accuracies[choice] = runs
        found[choice] = {
            "bytes": counter.bytes / seeds / served / plain_bytes,
            "accuracy": statistics.mean(runs),
            "explanation_cpu": (cpu_s / rounds) / (train_s / seeds / steps * EVERY),
            "explanation_rows": fetched / seeds / served / plain_bytes,
            **compare(runs, accuracies["plain"]),
        }
        print(f"{name} {choice}: {json.dumps(found[choice])}", file=sys.stderr, flush=True)
    found["dgs"]["over_shuffled"] = compare(accuracies["dgs"], accuracies["dgs_shuffled"])
    return found


def run(
    names: Sequence[str], seeds: int, steps: int, rounds: int, with_scores: bool = True
) -> dict[str, Any]:
    """Everything, as one object."""
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as folder:
        graphs = {name: measure(name, seeds, steps, Path(folder), with_scores) for name in names}
        plain = {name: headrace.open_graph(Path(folder) / f"{name}-plain") for name in names}
        far_cost = draw_cost(plain[names[-1]], Rule(far=0.25), rounds)
        labor_cost = {name: draw_cost(graph, LABOR, rounds) for name, graph in plain.items()}
    return {
        "graphs": graphs,
        "far_cost": far_cost,
        "labor_cost": labor_cost,
        "codec": codec_speeds(rounds),
    }


def main() -> int:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--quick", action="store_true", help="one graph, one seed, few steps")
    parser.add_argument("--only", help=f"of {','.join(GRAPHS)}, by commas")
    parser.add_argument(
        "--no-scores", action="store_true", help="omit explanations, which are slow"
    )
    parser.add_argument("--seeds", type=int, default=5, help="runs of each choice (5)")
    parser.add_argument("--steps", type=int, default=120, help="optimizer steps of each run (120)")
    parser.add_argument("--live", action="store_true", help="only the shaped testbed")
    parser.add_argument("--repetitions", type=int, default=3, help="of each live run (3)")
    parser.add_argument("--output", type=Path, help="result file to write, or to add to")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(GRAPHS)
    seeds, steps, rounds = args.seeds, args.steps, 15
    if args.quick:
        names, seeds, steps, rounds = ["pubmed"], 1, 35, 5
    began_s = time.perf_counter()
    found: dict[str, Any] = {"live": None}
    if args.live:
        with tempfile.TemporaryDirectory(prefix="hr-") as folder:
            found["live"] = measure_live(Path(folder), args.repetitions, LIVE_STEPS)
    else:
        found |= run(names, seeds, steps, rounds, not args.no_scores)
    document = {
        **found,
        "seconds": round(time.perf_counter() - began_s, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/traffic.py " + " ".join(sys.argv[1:]),
    }
    if args.output:
        known = json.loads(args.output.read_text()) if args.output.exists() else {}
        # Scores of a graph stay if they are not measured again.
        ours, theirs = document.get("graphs", {}), known.get("graphs", {})
        document["graphs"] = {
            name: {**theirs.get(name, {}), **ours.get(name, {})} for name in {**theirs, **ours}
        }
        document["labor_cost"] = {**known.get("labor_cost", {}), **document.get("labor_cost", {})}
        document["live"] = document["live"] or known.get("live")
        commands = [*known.get("commands", []), document.pop("command")]
        document = {**known, **document, "commands": list(dict.fromkeys(commands))}
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
