"""A trainer of random exchanges of rows, for `full_graph_testbed.py`.

    python benchmarks/full_graph_exchanges.py RANK HOST FILE

Trainers have random numbers of rows for each other. An exchange is timed until the last trainer has
all rows: sent to all others at once, and in rounds of matchings, in turns. The first trainer writes
the sizes and the seconds of both.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from headrace.training.full_graph.matchings import RoundTransfers, rounds_of
from headrace.training.full_graph.swap import Swap, SwapPolicy

NUM_TRAINERS, NUM_DRAWS, REPETITIONS = 4, 20, 2
WIDTH, MOST_ROWS = 256, 1500
ROW_BYTES = 4 * WIDTH


def main(rank: int, host: str, to: Path) -> None:
    """Exchange rows with the other trainers."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{host}:29511", rank=rank, world_size=NUM_TRAINERS
    )
    group = dist.group.WORLD
    policies = {
        "at_once": SwapPolicy(),
        "matchings": SwapPolicy(transfers=RoundTransfers(group)),
    }
    found = []
    for draw in range(NUM_DRAWS):
        rng = np.random.default_rng(draw)
        sizes = (rng.random((NUM_TRAINERS, NUM_TRAINERS)) ** 2 * MOST_ROWS).astype(int)
        np.fill_diagonal(sizes, 0)
        sent, received = sizes[rank].tolist(), sizes[:, rank].tolist()
        rows = torch.full((sum(sent), WIDTH), float(rank))
        seconds: dict[str, list[float]] = {name: [] for name in policies}
        for _ in range(REPETITIONS):
            for name, policy in policies.items():
                swap = Swap(sent, received, group, policy)
                dist.barrier()
                began_s = time.perf_counter()
                swap.start(rows).wait()
                passed_s = torch.tensor([time.perf_counter() - began_s])
                dist.all_reduce(passed_s, op=dist.ReduceOp.MAX)
                seconds[name].append(passed_s.item())
        busiest = max(sizes.sum(axis=0).max(), sizes.sum(axis=1).max())
        found.append(
            {
                "num_rounds": len(rounds_of(sizes)),
                "busiest_bytes": int(busiest) * ROW_BYTES,
                "seconds": seconds,
            }
        )
    if rank == 0:
        to.write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
