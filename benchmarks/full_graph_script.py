"""A training on the full graph whose epochs are timed, for `full_graph_testbed.py`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GCN, GraphSAGE

import headrace
from headrace.training.full_graph import layers, swap

MODELS = {"GCN": GCN, "SAGE": GraphSAGE}
COUNTERS = Path("/proc/net/dev")


def wait_at_once(swaps: list[list[tuple[float, int]]]) -> None:
    """Let every swap end before anything else is computed.

    Its time, and the bytes that were sent or received, whichever are more, are added to the last
    epoch's.
    """
    start = swap.Swap.start

    def start_and_wait(self: Any, rows: Any, *args: Any, **given: Any) -> swap.Pending:
        began_s = time.perf_counter()
        pending = start(self, rows, *args, **given)
        pending.wait()
        row_bytes = rows.element_size() * rows[:1].numel() if len(rows) else 0
        num_bytes = row_bytes * max(sum(self.sent), sum(self.received))
        swaps[-1].append((time.perf_counter() - began_s, num_bytes))
        return pending

    swap.Swap.start = start_and_wait  # type: ignore[method-assign]


def on_wire() -> tuple[int, int]:
    """Bytes that the cards of this machine have received and sent, with headers."""
    lines = (line.split(":") for line in COUNTERS.read_text().splitlines()[2:])
    values = [fields.split() for name, fields in lines if name.strip() != "lo"]
    return sum(int(each[0]) for each in values), sum(int(each[8]) for each in values)


def train_func(ctx: headrace.TrainContext) -> None:
    """Train for some epochs; each trainer writes when they began, and what it sent."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    how = ctx.config["how"]
    swaps: list[list[tuple[float, int]]] = [[]]
    if how == "none":
        wait_at_once(swaps)
    data = ctx.full_graph(matchings=how.endswith("matchings"), parallelism="rows")
    data.overlaps = how.startswith(("groups", "bins"))
    if how == "groups":
        layers.NUM_BINS = 1  # type: ignore[attr-defined]
    model = MODELS[ctx.config["model"]](
        ctx.graph.num_features, ctx.config["hidden"], ctx.config["layers"], ctx.graph.num_classes
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer = ctx.prepare(model, optimizer, full_graph=data)
    times, sent, wire = [time.perf_counter()], [data.sent_bytes], [on_wire()]
    losses, cpu_s = [], [time.process_time()]
    for _ in ctx.epochs(ctx.config["epochs"]):
        for batch in data:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)
            loss = cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        times.append(time.perf_counter())
        cpu_s.append(time.process_time())
        swaps.append([])
        sent.append(data.sent_bytes)
        wire.append(on_wire())
    found = {
        "times": times,
        "cpu_s": cpu_s,
        "sent": sent,
        "wire": wire,
        "losses": losses,
        "swaps": swaps[:-1],
        "model_bytes": sum(each.nbytes for each in model.parameters()),
    }
    # Machines of a testbed have the same files.
    (Path(ctx.config["to"]) / f"timed-{ctx.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    headrace.train(train_func)
