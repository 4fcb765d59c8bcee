"""Trains in a ring, in one go or in two; writes parameters. Run by a test, once per rank."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from headrace.training.ddp import join_group, leave_group, share_gradients

NUM_STEPS = 6


class Model(torch.nn.Module):
    """Uses its layers in another order than it has them, so that torch would order buckets anew."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first, self.middle = (torch.nn.Linear(n, 64) for n in (64, 16, 64))

    def forward(self, inputs: Any) -> Any:
        """Three layers."""
        return self.last(self.middle(self.first(inputs).tanh()).tanh())


def learn(state: Any, steps: range) -> Any:
    """Parameters and what the optimizer keeps, after some steps."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    if state is not None:
        model.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
    shared = share_gradients(model, torch.device("cpu"), bucket_cap_mb=0.01)
    for step in steps:
        torch.manual_seed(1000 * step + int(os.environ["RANK"]))
        optimizer.zero_grad()
        shared(torch.randn(32, 16)).pow(2).mean().backward()
        optimizer.step()
    return model.state_dict(), optimizer.state_dict()


if __name__ == "__main__":
    torch.set_num_threads(1)
    join_group(torch.device("cpu"), int(os.environ["WORLD_SIZE"]))
    whole = learn(None, range(NUM_STEPS))
    half = learn(None, range(NUM_STEPS // 2))
    resumed = learn(half, range(NUM_STEPS // 2, NUM_STEPS))
    if os.environ["RANK"] == "0":
        torch.save((whole[0], resumed[0]), Path(sys.argv[1]))
    leave_group()
