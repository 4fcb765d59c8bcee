"""Trains the model that `memory.py` measures: `memory_script.py MODEL WIDTH SIZE STEPS`."""

import sys
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GAT, GCN, GIN, PNA, GraphSAGE

import headrace

MODELS = {"GAT": GAT, "GCN": GCN, "GIN": GIN, "PNA": PNA, "SAGE": GraphSAGE}


def train_func(ctx: headrace.TrainContext) -> None:
    """Train for some steps."""
    name, width, size, num_steps = sys.argv[1], *map(int, sys.argv[2:5])
    data = ctx.graph
    settings: dict[str, Any] = {}
    if name == "PNA":
        scalers = ["identity", "amplification"]
        settings = {"aggregators": ["mean", "max", "std"], "scalers": scalers}
        settings["deg"] = torch.tensor([0, 5, 20, 40, 80, 20, 5])
    model = MODELS[name](
        data.num_features, width, num_layers=2, out_channels=data.num_classes, **settings
    )
    model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters()))
    loader = ctx.loader("train", num_neighbors=[10, 5], batch_size=size)
    step = 0
    while step < num_steps:
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            step += 1
            if step == num_steps:
                break


headrace.train(train_func)
