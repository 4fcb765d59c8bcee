"""Send wrong requests to every endpoint of a run: none may crash, and none may change a thing.

    python benchmarks/fuzz.py --json --output benchmarks/results/fuzz.json
    python benchmarks/fuzz.py --quick --json

Requests are right ones with random mistakes in fields, arrays and bytes, some with none: to stores,
parameter servers, samplers, the connections of RPC servers, the traffic controller, traffic agents,
probes, task actors and fork servers. They run in this process, in batches with a seed each.
`traceback` counts exceptions that no endpoint handled, also those that are only logged; `crash`
batches whose process ended; `silent` refused or reading requests after which the state of the
endpoint differed, and peers accepted without proof: each has to be 0. `--quick` sends 1,000.

With `--journal FILE`, done batches are recorded, and a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.machine import describe_machine
from tests.support.fuzz_endpoints import FINE
from tests.support.fuzz_run_endpoints import ENDPOINTS
from tests.unit.graph import small_graphs

NUM_REQUESTS, NUM_QUICK = 50_000, 1_000
BATCH = 250
BATCHES_PER_PROCESS = 40
OUTCOMES = ("refused", "answered", "ignored", "cut")


class Caught(logging.Handler):
    """Exceptions that nobody handled, logged or not."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []
        logging.getLogger().addHandler(self)
        threading.excepthook = lambda each: self.found.append(repr(each.exc_value))

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        self.found.append(f"{record.getMessage()}: {cause!r}")


def run_batch(name: str, number: int, count: int, scratch: Path) -> dict[str, Any]:
    """Send the requests of a batch to a new endpoint."""
    kind, _ = ENDPOINTS[name]
    caught, outcomes, wrong = Caught(), Counter[str](), []
    draw = np.random.default_rng([number, *name.encode()])
    with ExitStack() as stack:
        endpoint = kind(scratch / "graph", scratch, stack)
        for at in range(count):
            try:
                outcome = endpoint.try_one(draw)
            except Exception as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                outcome = f"{error!r} at {Path(last.filename).name}:{last.lineno}"
                caught.found.append(outcome)
            outcomes[outcome if outcome in FINE else "wrong"] += 1
            if outcome not in FINE or caught.found:
                kind_of = "traceback" if caught.found else "silent"
                details = " | ".join(caught.found) or outcome
                wrong.append({"request": at, "kind": kind_of, "what": details[:500]})
                caught.found.clear()
    logging.getLogger().removeHandler(caught)
    return {"endpoint": name, "batch": number, "outcomes": outcomes, "wrong": wrong}


def batches(num_requests: int, seed: int) -> list[tuple[str, int, int]]:
    """Endpoint, seed and number of requests of each batch."""
    made = []
    for name, (_, share) in ENDPOINTS.items():
        left, number = round(num_requests * share), seed
        while left > 0:
            made.append((name, number, min(BATCH, left)))
            left, number = left - BATCH, number + 1
    return made


def run_process(wanted: list[tuple[str, int, int]], scratch: Path) -> Iterator[dict[str, Any]]:
    """Run batches in a process of their own, as one may crash; yields them as they end."""
    command = [sys.executable, __file__, "--batches", json.dumps(wanted), "--scratch", str(scratch)]
    num_done = 0
    with (
        (scratch / "errors").open("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                num_done += 1
                yield json.loads(line)
        code = process.wait()
        errors.seek(0)
        last = errors.read()[-400:]
    if num_done < len(wanted):
        name, number, _ = wanted[num_done]
        wrong = [{"request": -1, "kind": "crash", "what": f"exit code {code}: {last}"}]
        yield {"endpoint": name, "batch": number, "outcomes": {}, "wrong": wrong}


def main() -> int:
    """Send all requests and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help=f"{NUM_QUICK} requests")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS, help="how many (50,000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first batch (0)")
    parser.add_argument("--journal", type=Path, help="file of done batches, to go on with")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    parser.add_argument("--batches", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.batches:
        for name, number, count in json.loads(args.batches):
            print(json.dumps(run_batch(name, number, count, args.scratch)), flush=True)
        return 0
    began = time.perf_counter()
    wanted = batches(NUM_QUICK if args.quick else args.requests, args.seed)
    done: dict[tuple[str, int], dict[str, Any]] = {}
    if args.journal is not None and args.journal.exists():
        for line in args.journal.read_text().splitlines():
            each = json.loads(line)
            done[each["endpoint"], each["batch"]] = each
    num_resumed = sum(each[:2] in done for each in wanted)
    with tempfile.TemporaryDirectory(prefix="headrace-fuzz-") as folder:
        scratch = Path(folder)
        small_graphs.write(small_graphs.homogeneous(200, 2000), scratch / "graph", num_parts=2)
        while left := [each for each in wanted if each[:2] not in done]:
            for each in run_process(left[:BATCHES_PER_PROCESS], scratch):
                done[each["endpoint"], each["batch"]] = each
                if args.journal is not None:
                    with args.journal.open("a") as file:
                        file.write(json.dumps(each) + "\n")
                if not args.json:
                    print(json.dumps(each), flush=True)
    document = summary([done[each[:2]] for each in wanted]) | {
        "num_requests": sum(count for _, _, count in wanted),
        "resumed_batches": num_resumed,
        "seconds": round(time.perf_counter() - began, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/fuzz.py " + " ".join(sys.argv[1:]),
        "is_quick": args.quick,
    }
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 1 if document["wrong"] else 0


def summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts by endpoint, and all that was wrong."""
    by_name: dict[str, Counter[str]] = {name: Counter() for name in ENDPOINTS}
    wrong: list[dict[str, Any]] = []
    for each in done:
        by_name[each["endpoint"]].update(each["outcomes"])
        own = {"endpoint": each["endpoint"], "batch": each["batch"]}
        wrong += [{**own, **found} for found in each["wrong"]]
    kinds = Counter(each["kind"] for each in wrong)
    return {
        "endpoints": {
            name: {"requests": count.total(), **{key: count[key] for key in OUTCOMES}}
            for name, count in by_name.items()
        },
        **{kind: kinds[kind] for kind in ("traceback", "crash", "silent")},
        "wrong": wrong,
    }


if __name__ == "__main__":
    sys.exit(main())
