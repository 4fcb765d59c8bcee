"""Gradients in 8 bits with error feedback.

Blocks of 1,024 values have a common scale. What rounding loses is added to the next gradient, so
that small gradients are not lost for good (Seide et al., 2014; Karimireddy et al., 2019).
"""

from __future__ import annotations

import numpy as np

BLOCK = 1024
"""Values with a common scale."""

_LEVELS = 127


def packed_bytes(num_values: int) -> int:
    """Size of encoded values: a scale per block, and a byte per value."""
    return 4 * -(-num_values // BLOCK) + num_values


def encode(values: np.ndarray) -> np.ndarray:
    """Encode floating-point values as bytes; blocks that are not finite are decoded as NaN."""
    num_blocks = -(-len(values) // BLOCK)
    blocks = np.zeros((num_blocks, BLOCK), np.float32)
    blocks.reshape(-1)[: len(values)] = values
    with np.errstate(invalid="ignore", over="ignore"):
        scales = np.abs(blocks).max(axis=1) / np.float32(_LEVELS)
    scales[~np.isfinite(scales)] = np.nan
    safe = np.where(np.isfinite(scales) & (scales > 0), scales, np.float32(1))
    with np.errstate(invalid="ignore"):
        codes = np.rint(blocks / safe[:, None])
    codes[~np.isfinite(scales)] = 0
    packed = np.empty(packed_bytes(len(values)), np.uint8)
    packed[: 4 * num_blocks] = scales.view(np.uint8)
    packed[4 * num_blocks :].view(np.int8)[:] = codes.reshape(-1)[: len(values)]
    return packed


def decode(packed: np.ndarray, num_values: int) -> np.ndarray:
    """Decode `num_values` values, `float32`; `packed` has their size."""
    num_blocks = -(-num_values // BLOCK)
    scales = np.ascontiguousarray(packed[: 4 * num_blocks]).view(np.float32)
    blocks = np.zeros((num_blocks, BLOCK), np.float32)
    blocks.reshape(-1)[:num_values] = packed[4 * num_blocks :].view(np.int8)
    blocks *= scales[:, None]
    values: np.ndarray = blocks.reshape(-1)[:num_values]
    return values


class ErrorFeedback:
    """Encodes a sequence of gradients; keeps what rounding has lost of each of them."""

    def __init__(self) -> None:
        self._lost: dict[object, np.ndarray] = {}

    def encode(self, key: object, values: np.ndarray) -> np.ndarray:
        """Encode a gradient; `key` identifies it in all steps."""
        values = np.array(values, np.float32)
        lost = self._lost.get(key)
        if lost is not None and len(lost) == len(values):
            values += lost
        packed = encode(values)
        values -= decode(packed, len(values))
        # A gradient that is not finite stops the run or is skipped; it must not stay.
        values[~np.isfinite(values)] = 0
        self._lost[key] = values
        return packed
