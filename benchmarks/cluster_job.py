"""What trainers do in `cluster_runtime.py`: one script, told by its settings what to show."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE


def train_func(ctx: Any) -> None:
    torch.set_num_threads(1)
    task = {"steps": take_steps, "gradients": show_gradients, "points": show_points}
    task[ctx.config["task"]](ctx)


def make_model(ctx: Any, seed: int, dropout: float = 0.0) -> Any:
    """A small model that fits the graph; the same for the same seed."""
    torch.manual_seed(seed)
    config = ctx.config
    return GraphSAGE(
        config["features"],
        config["width"],
        num_layers=len(config["fanouts"]),
        out_channels=config["classes"],
        dropout=dropout,
    )


def losses(ctx: Any, model: Any, optimizer: Any, loader: Any) -> Any:
    """Go through an epoch; batches and losses, before the optimizer steps."""
    for batch in loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        yield batch
        optimizer.step()
        del batch


def take_steps(ctx: Any) -> None:
    """Steps without end: the number of them is an order of the run."""
    model = make_model(ctx, 0)
    model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    loader = ctx.loader("train", num_neighbors=ctx.config["fanouts"])
    left = ctx.config["steps"]
    while left > 0:
        for _ in losses(ctx, model, optimizer, loader):
            left -= 1
            if left == 0:
                break


def show_gradients(ctx: Any) -> None:
    """Gradients of the first steps with all neighbours, and the seeds they come from."""
    plain = make_model(ctx, 0)
    model, optimizer = ctx.prepare(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    loader = ctx.loader("train", num_neighbors=[-1] * len(ctx.config["fanouts"]))
    seeds: list[list[int]] = []
    gradients: list[list[Any]] = []
    for _ in range(ctx.config["epochs"]):
        for batch in losses(ctx, model, optimizer, loader):
            seeds.append(batch.n_id[: batch.batch_size].tolist())
            gradients.append([p.grad.flatten().tolist() for p in plain.parameters()])
    said = {"rank": ctx.rank, "seeds": seeds, "gradients": gradients if ctx.rank == 0 else []}
    (ctx.output / f"gradients-{ctx.rank}.json").write_text(json.dumps(said))
    # Ranks other than 0 keep nothing for the driver, so they say it.
    print("SEEDS " + json.dumps({"rank": ctx.rank, "seeds": seeds}), flush=True)


def show_points(ctx: Any) -> None:
    """Points on the test set after training, for several first weights."""
    config = ctx.config
    loader = ctx.loader("train", num_neighbors=config["fanouts"])
    test = ctx.loader("test", num_neighbors=[-1] * len(config["fanouts"]))
    for seed in range(config["seeds"]):
        plain = make_model(ctx, seed, dropout=0.5)
        model, optimizer = ctx.prepare(plain, torch.optim.Adam(plain.parameters(), lr=0.01))
        for _ in range(config["epochs"]):
            model.train()
            for _ in losses(ctx, model, optimizer, loader):
                pass
        model.eval()
        num_right = num_nodes = 0
        with torch.no_grad():
            for batch in test:
                out = plain(batch.x, batch.edge_index)[: batch.batch_size]
                num_right += int((out.argmax(-1) == batch.y[: batch.batch_size]).sum())
                num_nodes += batch.batch_size
        ctx.report(seed=seed, points=100 * ctx.sum(num_right) / ctx.sum(num_nodes))
