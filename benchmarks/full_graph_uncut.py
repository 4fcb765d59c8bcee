"""A trainer that divides layers by rows and by features in turns, for `full_graph_testbed.py`.

    python benchmarks/full_graph_uncut.py RANK HOST GRAPH FILE

An epoch is timed until the last trainer has ended it. The first trainer writes the seconds and the
payload of all trainers by way.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

from headrace.graph.format.partitioned_graph import open_graph
from headrace.training.ddp import share_gradients
from headrace.training.full_graph.full_graph import FullGraph
from headrace.training.full_graph.swap import Parallelism

NUM_TRAINERS, NUM_EPOCHS = 4, 9
HIDDEN, NUM_LAYERS = 256, 3
WAYS: tuple[Parallelism, ...] = ("rows", "features")


def main(rank: int, host: str, folder: Path, to: Path) -> None:
    """Train with the other trainers."""
    torch.set_num_threads(1)
    address = f"tcp://{host}:29512"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=NUM_TRAINERS)
    group, graph = dist.group.WORLD, open_graph(folder)
    found: dict[str, Any] = {way: {"seconds": [], "payload_bytes": []} for way in WAYS}
    made: dict[Parallelism, Any] = {}
    for way in WAYS:
        torch.manual_seed(0)
        data = FullGraph(graph, group, parallelism=way)
        model = GraphSAGE(graph.num_features, HIDDEN, NUM_LAYERS, graph.num_classes)
        data.wrap(model)
        model = share_gradients(model, torch.device("cpu"))
        made[way] = data, model, torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(NUM_EPOCHS):
        for way, (data, model, optimizer) in made.items():
            sent_bytes = data.sent_bytes
            dist.barrier()
            began_s = time.perf_counter()
            for batch in data:
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)
                loss = cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])
                loss.backward()
                optimizer.step()
            took = torch.tensor(time.perf_counter() - began_s, dtype=torch.float64)
            payload = torch.tensor(data.sent_bytes - sent_bytes)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            dist.all_reduce(payload)
            found[way]["seconds"].append(float(took))
            found[way]["payload_bytes"].append(int(payload))
            found[way]["loss"] = loss.item()
    if rank == 0:
        to.write_text(json.dumps(found))
    dist.barrier()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
