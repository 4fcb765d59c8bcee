"""Sum of gradients over trainers in 8 bits; a communication hook of torch's data parallelism.

Every trainer sums one part of a bucket: all send it their encoded part, and it sends the encoded
sum to all. Trainers decode the same bytes, so their parameters stay equal.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from headrace.training import gradient_codec
from headrace.training.gradient_codec import BLOCK, ErrorFeedback


class QuantisedSum:
    """Sums buckets over all trainers; rounding errors are added to the next step's gradients."""

    def __init__(self) -> None:
        self._feedback = ErrorFeedback()

    def __call__(self, number: int, gradients: Tensor) -> Tensor:
        """Sum a bucket.

        Args:
            number: Number of the bucket.
            gradients: This trainer's summand, flat.
        """
        world_size, device = dist.get_world_size(), gradients.device
        num_blocks = -(-gradients.numel() // BLOCK)
        length = -(-num_blocks // world_size) * BLOCK
        values = np.zeros(length * world_size, np.float32)
        values[: gradients.numel()] = gradients.detach().cpu().numpy()
        parts = [
            self._feedback.encode((number, rank), values[rank * length : (rank + 1) * length])
            for rank in range(world_size)
        ]
        sent = torch.from_numpy(np.concatenate(parts)).to(device)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        summed = np.zeros(length, np.float32)
        for packed in received.cpu().numpy().reshape(world_size, -1):
            summed += gradient_codec.decode(packed, length)
        own = torch.from_numpy(self._feedback.encode((number, "sum"), summed)).to(device)
        all_sums = [torch.empty_like(own) for _ in range(world_size)]
        dist.all_gather(all_sums, own)
        decoded = [gradient_codec.decode(each.cpu().numpy(), length) for each in all_sums]
        whole = torch.from_numpy(np.concatenate(decoded)[: gradients.numel()])
        return whole.to(device, gradients.dtype)
