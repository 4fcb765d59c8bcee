"""Partition graphs, generated and real; compare the cut with bare METIS and the time with KaMinPar.

    python benchmarks/graph_data.py --json
    python benchmarks/graph_data.py --quick --json

The last line is one JSON object:

- `scale`: 10 M nodes, 160 M edges, 128 features into 8 parts: read, cut, write, verify;
- `stream`: topology alone of 100 M nodes and 1.6 B edges through the partitioner that streams;
- `start`: a new process opens the parts and answers its first sample; what a second one needs;
- `quality`: our cuts beside bare METIS with the same constraints, before and after the stage that
  balances communication;
- `kaminpar`: CPU seconds of our whole way over KaMinPar alone;
- `real`: every dataset: ids round-trip, GraphSAGE's logits, features stored in fewer bits.

Every measurement runs in a process of its own; peak memory is what that process had of its own
(RssAnon + RssShmem), sampled every 20 ms. `--quick` does the 1 M-node graph only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.apart import GIB, Stages, apart, disk_bytes
from benchmarks.graph_checks import DATA, datasets, feature_types, real, start
from benchmarks.machine import describe_machine

SMALL = "generated:nodes=1e6,edges=25e6,features=128"
LARGE = "generated:nodes=1e7,edges=1.6e8,features=128"
HUGE = "generated:nodes=1e8,edges=1.6e9,features=0"
PARTS = (4, 16)


def scale(source: str, num_parts: int, method: str, folder: Path) -> dict[str, Any]:
    """Read, partition, write and verify."""
    from headrace.api.graph import partition, verify

    stages = Stages()
    began = time.perf_counter()
    graph = partition(source, folder, num_parts, method=method, watcher=stages)
    stages.begin("verifying")
    problems = verify(folder)
    stages.close()
    return {
        "source": source,
        "parts": num_parts,
        "method": graph.manifest.method,
        "wall_s": round(time.perf_counter() - began, 1),
        "peak_own_gib": round(stages.peak_bytes / GIB, 2),
        "disk_gib": round(disk_bytes(folder) / GIB, 2),
        "stages_s": stages.seconds,
        "stages_cpu_s": stages.cpu_seconds,
        "problems": problems,
        "quality": dict(graph.manifest.quality),
    }


def prepare(source: str, num_parts: int, folder: Path) -> Any:
    """The question that partitioners are asked, as the pipeline asks it."""
    from headrace.graph.build.csc import build_adjacency, build_csc
    from headrace.graph.build.partition import BALANCED, constraints
    from headrace.graph.partitioners._base import Question
    from headrace.graph.sources.resolve import open_source

    graph = open_source(source, 0)
    sizes = {table.name: table.num_nodes for table in graph.nodes}
    cscs = []
    for e, table in enumerate(graph.edges):
        src, _, dst = table.edge_type
        cscs.append(build_csc(table, sizes[src], sizes[dst], folder / f"edges-{e}"))
    adjacency = build_adjacency(graph, cscs, folder / "adjacency")
    shares = np.full(num_parts, 1 / num_parts)
    return Question(adjacency, shares, constraints(graph, cscs, BALANCED))


def quality(source: str, num_parts: int) -> dict[str, Any]:
    """Our cut beside METIS alone."""
    from headrace.graph.build.cut_quality import measure
    from headrace.graph.partitioners.g3_communication import balance_communication
    from headrace.graph.partitioners.metis import Metis
    from headrace.graph.partitioners.rebalance import repair

    with tempfile.TemporaryDirectory() as scratch:
        question = prepare(source, num_parts, Path(scratch))
        began = time.process_time()
        cut = Metis().assign(question, lambda name: None)
        metis_s = time.process_time() - began
        bare = measure(question, bare_metis(question))
        began = time.process_time()
        repaired = repair(question, cut)
        before = measure(question, repaired)
        after = measure(question, balance_communication(question, repaired))
        ours_s = time.process_time() - began
    train = [c.weights for c in question.constraints if c.name.startswith("train")]
    per_part = min((int(weights.sum()) // num_parts for weights in train), default=0)
    return {
        "nodes": question.adjacency.num_nodes,
        "arcs": question.adjacency.num_arcs,
        "metis_cut": round(bare.edge_cut, 5),
        "cut": round(after.edge_cut, 5),
        "cut_ratio": round(after.edge_cut / bare.edge_cut, 4),
        "metis_balance": rounded(bare.balance),
        "balance": rounded(after.balance),
        "train_per_part": per_part,
        "metis_imbalance": round(bare.imbalance, 4),
        "imbalance": round(after.imbalance, 4),
        "extra_volume": round(after.volume / before.volume - 1, 4),
        "remote_fraction": round(after.remote_fraction, 4),
        "metis_cpu_s": round(metis_s, 2),
        "more_cpu_s": round(ours_s, 2),
    }


def bare_metis(question: Any) -> np.ndarray:
    """METIS with its own defaults and the question's tolerance for every constraint."""
    from headrace.graph.partitioners.metis import Metis

    return np.asarray(Metis(tightness=1.0, num_tries=1).assign(question, lambda name: None))


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def bare_kaminpar(source: str, num_parts: int) -> dict[str, float]:
    """CPU seconds of KaMinPar alone, reading its own file format."""
    import kaminpar

    from headrace.graph.partitioners.kaminpar_partitioner import write_parhip

    with tempfile.TemporaryDirectory() as scratch:
        question = prepare(source, num_parts, Path(scratch))
        path = Path(scratch) / "graph.parhip"
        began = time.process_time()
        write_parhip(question.adjacency, path)
        convert_s = time.process_time() - began
        began = time.process_time()
        graph = kaminpar.load_graph(str(path), kaminpar.GraphFileFormat.PARHIP, compress=True)
        kaminpar.reseed(0)
        solver = kaminpar.KaMinPar(1, kaminpar.terapart_context())
        solver.compute_partition(graph, num_parts, 0.03)
        return {
            "convert_cpu_s": round(convert_s, 1),
            "bare_cpu_s": round(time.process_time() - began, 1),
        }


def stream(source: str, num_parts: int) -> dict[str, Any]:
    """Topology alone, larger than memory allows otherwise: read, cut by Fennel, count the cut."""
    from headrace.graph.build.cut_quality import measure
    from headrace.graph.partitioners.fennel import Fennel

    stages = Stages()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        stages.begin("reading and building")
        question = prepare(source, num_parts, Path(scratch))
        stages.begin("cutting by fennel")
        parts = Fennel().assign(question, lambda name: None)
        stages.begin("measuring the cut")
        found = measure(question, parts)
        disk = disk_bytes(Path(scratch))
    stages.close()
    return {
        "source": source,
        "parts": num_parts,
        "wall_s": round(time.perf_counter() - began, 1),
        "peak_own_gib": round(stages.peak_bytes / GIB, 2),
        "disk_gib": round(disk / GIB, 2),
        "stages_s": stages.seconds,
        "stages_cpu_s": stages.cpu_seconds,
        "cut": round(found.edge_cut, 4),
        "balance": rounded(found.balance),
    }


def run(
    quick: bool, scratch: Path, only: set[str], log: Callable[[str, Any], None]
) -> dict[str, Any]:
    """All measurements that are asked for."""
    found: dict[str, Any] = {}

    def measure(name: str, value: Callable[[], Any]) -> None:
        if not only or name in only:
            found[name] = value()
            log(name, found[name])

    source = SMALL if quick else LARGE
    folder = scratch / "parts"
    if not only or only & {"scale", "start", "kaminpar"}:
        method = "fennel" if quick else "auto"
        found["scale"] = apart(scale, source, 8, method, folder)
        log("scale", found["scale"])
        measure("start", lambda: start(folder))
        shutil.rmtree(folder)
    if not quick:
        measure("kaminpar", lambda: kaminpar_ratio(found["scale"]))
    graphs = {} if quick else {name: str(DATA / name) for name in datasets()}
    parts = PARTS[:1] if quick else PARTS
    measure(
        "quality",
        lambda: {
            name: {str(k): apart(quality, text, k) for k in parts}
            for name, text in ({"generated-1m": SMALL} | graphs).items()
        },
    )
    if not quick:
        measure("real", lambda: {name: apart(real, name) for name in datasets()})
        measure("feature_types", lambda: apart(feature_types, "planetoid/pubmed.npz", 5))
        measure("stream", lambda: apart(stream, HUGE, 8))
    return found


def kaminpar_ratio(found: dict[str, Any]) -> dict[str, Any]:
    """Conversion, cut, repair and writing over KaMinPar alone; and with all other stages."""
    bare: dict[str, Any] = apart(bare_kaminpar, LARGE, 8)
    stages: dict[str, float] = found["stages_cpu_s"]
    asked = ("joining", "cutting", "repairing", "writing")
    ours_s = sum(seconds for name, seconds in stages.items() if name.startswith(asked))
    return bare | {
        "ours_cpu_s": round(ours_s, 1),
        "ratio": round(ours_s / bare["bare_cpu_s"], 3),
        "ratio_with_all_stages": round(sum(stages.values()) / bare["bare_cpu_s"], 3),
        "breakdown_cpu_s": stages,
    }


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="the 1 M-node graph only")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--only", help="comma-separated keys instead of all")
    parser.add_argument("--scratch", type=Path, help="folder for some 20 GB of files")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    parser.add_argument("--into", action="store_true", help="keep what the output file has already")
    args = parser.parse_args()
    began = time.perf_counter()

    def log(name: str, value: Any) -> None:
        if not args.json:
            print(f"{name}: {json.dumps(value)}", flush=True)

    if args.scratch:
        os.environ["TMPDIR"] = str(args.scratch)
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        only = set(args.only.split(",")) if args.only else set()
        document = run(args.quick, Path(scratch), only, log)
    command = "python benchmarks/graph_data.py " + " ".join(sys.argv[1:])
    document |= {"commands": [command], "seconds": round(time.perf_counter() - began, 1)}
    if args.into and args.output and args.output.exists():
        older = json.loads(args.output.read_text())
        document["commands"] = older["commands"] + document["commands"]
        document["seconds"] = round(older["seconds"] + document["seconds"], 1)
        document = older | document
    document |= {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
    }
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
