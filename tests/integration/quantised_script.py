"""Trains with gradients in 8 bits beside exact ones; one process per rank of a ring."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist

from headrace.training.ddp import join_group, leave_group, share_gradients


def train(rank: int, is_quantised: bool) -> list[Any]:
    torch.manual_seed(0)
    layers = torch.nn.Linear(300, 40), torch.nn.ReLU(), torch.nn.Linear(40, 5)
    model = share_gradients(torch.nn.Sequential(*layers), torch.device("cpu"), is_quantised)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs = torch.randn(600, 300)
    targets = (inputs @ torch.randn(300, 5)).argmax(1)
    loss = torch.zeros(())
    for step in range(40):
        drawn = torch.randperm(600, generator=torch.Generator().manual_seed(10 * step + rank))[:64]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[drawn]), targets[drawn]).backward()
        optimizer.step()
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    return [[parameter.detach() for parameter in model.parameters()], float(loss)]


def main() -> None:
    join_group(torch.device("cpu"), 2)
    found = [train(dist.get_rank(), is_quantised) for is_quantised in (False, True)]
    torch.save(found, f"{sys.argv[1]}-{dist.get_rank()}")
    leave_group()


if __name__ == "__main__":
    main()
