"""Asynchronous collectives besides gradients; all trainers must call them in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist


def largest(values: Sequence[int], device: torch.device) -> Callable[[], list[int]]:
    """Start an all-reduce (maximum) of each value; the returned function waits for the result."""
    if not dist.is_available() or not dist.is_initialized():
        return lambda: list(values)
    tensor = torch.tensor(values, dtype=torch.int64, device=device)
    work = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)
    assert work is not None

    def wait() -> list[int]:
        work.wait()
        found: list[int] = tensor.tolist()
        return found

    return wait


def at_first_trainer(
    data: torch.Tensor, device: torch.device
) -> Callable[[], list[torch.Tensor] | None]:
    """Start a gather of a tensor at rank 0; it has the same size on all trainers.

    Returns:
        Function that waits for the tensors of all trainers by rank, on the CPU; None at other
            ranks.
    """
    if not dist.is_available() or not dist.is_initialized():
        return lambda: [data]
    own, is_first = data.to(device), dist.get_rank() == 0
    found = [torch.empty_like(own) for _ in range(dist.get_world_size())] if is_first else None
    alive = own, found  # keeps the tensors until all is sent
    work = dist.gather(own, found, async_op=True)
    assert work is not None

    def wait() -> list[torch.Tensor] | None:
        work.wait()
        _, tensors = alive
        return None if tensors is None else [each.cpu() for each in tensors]

    return wait
