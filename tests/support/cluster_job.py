"""What trainers do in tests and benchmarks: one script, told by its settings what to show."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

from headrace.runtime.protocol.run_context import current_run


def train_func(ctx: Any) -> None:
    torch.set_num_threads(1)
    task = {
        "steps": take_steps,
        "epochs": take_epochs,
        "gradients": show_gradients,
        "points": show_points,
        "learn": learn,
    }
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
        seem_to_compute(ctx, batch.batch_size)
        loss.backward()
        yield batch
        optimizer.step()
        time.sleep(ctx.config.get("pause_s", 0.0))
        del batch


def seem_to_compute(ctx: Any, num_seeds: int) -> None:
    """Sleep for as long as computing takes on an emulated machine, if the settings say so."""
    run, by_machine = current_run(), ctx.config.get("pause_per_seed_s", {})
    if run is not None and by_machine:
        time.sleep(by_machine[run.machine] * num_seeds)


def take_steps(ctx: Any) -> None:
    """Steps without end: the number of them is an order of the run."""
    model = make_model(ctx, 0)
    model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    cache_bytes = ctx.config.get("cache_bytes", 0)
    loader = ctx.loader("train", num_neighbors=ctx.config["fanouts"], cache_bytes=cache_bytes)
    left = ctx.config["steps"]
    while left > 0:
        for _ in losses(ctx, model, optimizer, loader):
            left -= 1
            if left == 0:
                break


def learn(ctx: Any) -> None:
    """Steps, and every ten of them the share of right answers among the last fifty steps' seeds."""
    model = make_model(ctx, 0)
    model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    loader = ctx.loader("train", num_neighbors=ctx.config["fanouts"])
    shares: list[float] = []
    began_s = time.monotonic()
    while len(shares) < ctx.config["steps"]:
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            target = batch.y[: batch.batch_size]
            cross_entropy(out, target).backward()
            optimizer.step()
            shares.append(float((out.argmax(-1) == target).float().mean()))
            if len(shares) % 10 == 0:
                recent = shares[-50:]
                passed_s = time.monotonic() - began_s
                ctx.report(step=len(shares), accuracy=sum(recent) / len(recent), passed_s=passed_s)
            if len(shares) == ctx.config["steps"]:
                break
            del batch


def take_epochs(ctx: Any) -> None:
    """The same in epochs that can be gone on with, so that there are checkpoints.

    With `ballast`, so many numbers more are in each: it takes a while to write.
    """
    config = ctx.config
    model = make_model(ctx, 0, config.get("dropout", 0.0))
    model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    loader = ctx.loader("train", num_neighbors=config["fanouts"])
    if config.get("ballast"):
        ctx.keep(ballast=torch.nn.Linear(config["ballast"], 1, bias=False))
    torch.manual_seed(1 + ctx.rank)  # every trainer drops other activations
    for _ in ctx.epochs(-(-config["steps"] // len(loader))):
        for _ in losses(ctx, model, optimizer, loader):
            pass


def show_gradients(ctx: Any) -> None:
    """Gradients of the first steps with all neighbours, and the seeds they come from.

    In a ring they can be seen; what parameter servers sum is seen from what they do with it.
    They are those of the first epoch. More follow, until there is the file `until`.
    """
    plain, lr = make_model(ctx, 0), 0.1
    model, optimizer = ctx.prepare(plain, torch.optim.SGD(plain.parameters(), lr=lr))
    loader = ctx.loader("train", num_neighbors=[-1] * len(ctx.config["fanouts"]))
    seeds: list[list[int]] = []
    gradients: list[list[Any]] = []
    before: list[Any] = []

    def begin(*_: Any) -> None:
        before[:] = [p.detach().clone() for p in plain.parameters()]

    def end(*_: Any) -> None:
        after = zip(before, plain.parameters(), strict=True)
        gradients.append([((old - p.detach()) / lr).flatten().tolist() for old, p in after])

    if ctx.config.get("by_steps"):
        optimizer.register_step_pre_hook(begin)
        seen = optimizer.register_step_post_hook(end)
    num_seeds = 0
    for epoch in ctx.epochs(ctx.config.get("epochs")):
        for batch in losses(ctx, model, optimizer, loader):
            num_seeds += batch.batch_size
            if epoch:
                continue
            seeds.append(batch.n_id[: batch.batch_size].tolist())
            if not ctx.config.get("by_steps"):
                gradients.append([p.grad.flatten().tolist() for p in plain.parameters()])
        if not epoch:
            _show(ctx, plain, seeds, gradients)
            if ctx.config.get("by_steps"):
                seen.remove()
        ctx.report(epoch=epoch, norm=norm(plain), num_seeds=ctx.sum(num_seeds))
        if ctx.sum(os.path.exists(ctx.config.get("until", ""))):
            break


def norm(model: Any) -> float:
    """One figure that tells how far the training is."""
    return float(sum(p.detach().square().sum() for p in model.parameters()))


def _show(ctx: Any, plain: Any, seeds: list[Any], gradients: list[Any]) -> None:
    said: dict[str, Any] = {"rank": ctx.rank, "seeds": seeds, "gradients": gradients}
    said["parameters"] = [p.flatten().tolist() for p in plain.parameters()]
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
