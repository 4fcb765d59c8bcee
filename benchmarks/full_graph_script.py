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
from headrace.training.full_graph import swap

MODELS = {"GCN": GCN, "SAGE": GraphSAGE}


WAITED_S = [0.0]


def wait_at_once() -> None:
    """Let every swap end before anything else is computed."""
    start = swap.Swap.start

    def start_and_wait(self: Any, *args: Any, **given: Any) -> swap.Pending:
        began_s = time.perf_counter()
        pending = start(self, *args, **given)
        pending.wait()
        WAITED_S[-1] += time.perf_counter() - began_s
        return pending

    swap.Swap.start = start_and_wait  # type: ignore[method-assign]


def train_func(ctx: headrace.TrainContext) -> None:
    """Train for some epochs; each trainer writes when they began, and what it sent."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    how = ctx.config["how"]
    if how == "none":
        wait_at_once()
    data = ctx.full_graph()
    data.overlaps = how == "groups"
    model = MODELS[ctx.config["model"]](
        ctx.graph.num_features, ctx.config["hidden"], ctx.config["layers"], ctx.graph.num_classes
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer = ctx.prepare(model, optimizer, full_graph=data)
    times, sent = [time.perf_counter()], [data.sent_bytes]
    losses = []
    for _ in ctx.epochs(ctx.config["epochs"]):
        for batch in data:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)
            loss = cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        times.append(time.perf_counter())
        WAITED_S.append(0.0)
        sent.append(data.sent_bytes)
    found = {"times": times, "sent": sent, "losses": losses, "waited_s": WAITED_S[:-1]}
    # Machines of a testbed have the same files.
    (Path(ctx.config["to"]) / f"timed-{ctx.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    headrace.train(train_func)
