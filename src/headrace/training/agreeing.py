"""What trainers tell each other beside gradients; all of them must ask, in the same order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


def largest(values: Sequence[int], device: torch.device) -> list[int]:
    """The largest of each value over all trainers."""
    if not dist.is_available() or not dist.is_initialized():
        return list(values)
    tensor = torch.tensor(values, dtype=torch.int64, device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    found: list[int] = tensor.tolist()
    return found


def at_first_trainer(data: torch.Tensor, device: torch.device) -> list[torch.Tensor] | None:
    """The tensors of all trainers by rank, of the same size and on the CPU; none at other ranks."""
    if not dist.is_available() or not dist.is_initialized():
        return [data]
    own = data.to(device)
    if dist.get_rank() != 0:
        dist.gather(own)
        return None
    found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.gather(own, found)
    return [each.cpu() for each in found]
