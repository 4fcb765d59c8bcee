"""What comparing all files with their checksums costs at the start of stores.

    python benchmarks/verification.py --json --output benchmarks/results/verification.json
    python benchmarks/verification.py --quick --json

Two stores serve a graph of 10 million nodes (`--quick`: of 200,000), each in a process of its own,
and a loader asks both of them for batches. They start three times without verification and three
times with it, in turns, each time as if their files had never been seen.

The last line is one JSON object: `first_batch_s` (from the start of the stores) and `second_s` (per
batch, of the 20 that follow) of both ways, medians; `verified_s` until all files were compared;
`cpu_s`, CPU seconds that stores used more than without, per graph and per GB; `bytes`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine
from headrace.api.graph import partition
from headrace.graph.format.partitioned_graph import open_graph
from tests.support.stores import RunningStores, running_stores
from tests.support.waiting import eventually

LARGE = "generated:nodes=1e7,edges=1.6e8,features=128"
SMALL = "generated:nodes=2e5,edges=4e6,features=128"
NUM_PARTS, BATCH_SIZE, FANOUTS, NUM_BATCHES = 2, 256, [10, 5], 20
WAYS = ("without", "with")


def start(graph: Path, folder: Path, way: str) -> dict[str, float]:
    """Start stores and take batches; seconds."""
    import torch

    from headrace import NeighborLoader

    verify = way == "with"
    home = folder / "home"
    home.mkdir(parents=True)
    began_s = time.monotonic()
    with running_stores(
        graph,
        range(NUM_PARTS),
        folder / "stores",
        settings={"verify": verify},
        environment={"HOME": str(home)},
    ) as stores:
        connect = {store.part: _connection(stores, store.part) for store in stores.stores}
        # Which nodes a split has is in the parts, and these are at the stores.
        nodes = torch.arange(BATCH_SIZE * (NUM_BATCHES + 1))
        loader = NeighborLoader(graph, FANOUTS, nodes, batch_size=BATCH_SIZE, connect=connect)
        batches = iter(loader)
        next(batches)
        first_s = time.monotonic() - began_s
        for _ in range(NUM_BATCHES):
            next(batches)
        second_s = (time.monotonic() - began_s - first_s) / NUM_BATCHES
        if verify:
            done = [folder / "stores" / f"ready-{part}-verified" for part in range(NUM_PARTS)]
            if not eventually(lambda: all(path.exists() for path in done)):
                raise RuntimeError("the stores did not verify their files")
        verified_s = time.monotonic() - began_s
        cpu_s = sum(_cpu_s(store.process.pid) for store in stores.stores)
    return {
        "first_batch_s": first_s,
        "second_s": second_s,
        "verified_s": verified_s,
        "cpu_s": cpu_s,
    }


def _connection(stores: RunningStores, part: int) -> Any:
    return lambda: stores.connect(part)


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--quick", action="store_true", help="a small graph, once")
    parser.add_argument("--graph", type=Path, help="parts to use instead")
    parser.add_argument("--output", type=Path, help="result file to write")
    args = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="headrace-verification-"))
    try:
        graph = args.graph or scratch / "graph"
        if args.graph is None:
            partition(SMALL if args.quick else LARGE, graph, NUM_PARTS)
        num_bytes = sum(info.bytes for info in open_graph(graph).manifest.files.values())
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        start(graph, scratch / "warm", "without")
        for number in range(1 if args.quick else 3):
            for way in WAYS:
                runs[way].append(start(graph, scratch / f"{way}-{number}", way))
                print(f"{way}: {runs[way][-1]}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    middle = {
        way: {name: median(run[name] for run in found) for name in found[0]}
        for way, found in runs.items()
    }
    cpu_s = middle["with"]["cpu_s"] - middle["without"]["cpu_s"]
    result = {
        "first_batch_s": {way: middle[way]["first_batch_s"] for way in WAYS},
        "second_s": {way: middle[way]["second_s"] for way in WAYS},
        "verified_s": middle["with"]["verified_s"],
        "cpu_s": {"graph": cpu_s, "per_gb": cpu_s / (num_bytes / 1e9)},
        "bytes": num_bytes,
        "runs": runs,
        "benchmark": "verification",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/verification.py " + " ".join(sys.argv[1:]),
        "machine": describe_machine(),
        "is_quick": args.quick,
    }
    if args.output is not None:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if args.json else json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
