"""Counts of a step's operations: what its time depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from headrace.core.step_counts import StepCounts

_MATMULS = {"mm", "addmm", "bmm", "baddbmm"}
_GATHERS = {"index_select", "gather", "index", "embedding", "take"}
_SCATTERS = {
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "index_add",
    "index_copy",
    "index_put",
    "_index_put_impl",
    "_unsafe_index_put",
    "embedding_dense_backward",
    "segment_reduce",
    "_segment_reduce_backward",
}
_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach"}


def count(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> StepCounts:
    """Counts of one operation.

    Args:
        name: Its name without namespace and overload.
        inputs: Its tensors.
        outputs: New or changed tensors; none for a view.
    """
    name = name.rstrip("_") or name
    written = sum(map(_bytes, outputs))
    if not outputs or name in _FREE:
        return StepCounts(operations=1)
    if name in _MATMULS:
        left, right = [tensor for tensor in inputs if tensor.dim() > 1][-2:]
        flops = 2.0 * outputs[0].numel() * left.shape[-1]
        return StepCounts(
            operations=1,
            matmul_flops=flops,
            matmul_bytes=float(_bytes(left) + _bytes(right) + written),
        )
    if name in _GATHERS:
        return StepCounts(operations=1, gathered_bytes=float(written))
    if name in _SCATTERS:
        moved = max((_bytes(tensor) for tensor in inputs if tensor.is_floating_point()), default=0)
        source = [tensor for tensor in inputs[1:] if tensor.is_floating_point()]
        return StepCounts(
            operations=1, scattered_bytes=float(_bytes(source[-1]) if source else moved)
        )
    return StepCounts(operations=1, other_bytes=float(written + sum(map(_bytes, inputs))))


def _bytes(tensor: Tensor) -> int:
    """Bytes of all elements; those of an expanded tensor are read once."""
    num: Any = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        num *= size if stride else 1
    return int(num) * tensor.element_size()
