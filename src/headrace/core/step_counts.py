"""Counts of one training step, from which its time is estimated."""

from __future__ import annotations

from typing import NamedTuple


class StepCounts(NamedTuple):
    """What a training step does.

    Attributes:
        operations: Tensor operations.
        matmul_flops: Floating-point operations of matrix products.
        matmul_bytes: Bytes that matrix products read and write.
        gathered_bytes: Bytes of rows gathered by index.
        scattered_bytes: Bytes of rows scattered or summed by index.
        other_bytes: Bytes that all other operations read and write.
    """

    operations: float = 0.0
    matmul_flops: float = 0.0
    matmul_bytes: float = 0.0
    gathered_bytes: float = 0.0
    scattered_bytes: float = 0.0
    other_bytes: float = 0.0

    def plus(self, other: StepCounts) -> StepCounts:
        """Element-wise sum."""
        return StepCounts(*(a + b for a, b in zip(self, other, strict=True)))
