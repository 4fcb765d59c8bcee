"""How values are stored: little-endian, features narrower if asked for."""

from __future__ import annotations

from typing import get_args

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.format.manifest import ColumnInfo, DTypeName, numpy_dtype
from headrace.graph.kernels.writing import round_to_bfloat16
from headrace.graph.schema import Column

FEATURE_DTYPES = ("float32", "float16", "bfloat16")
FEATURES = "x"
"""The column that may be stored narrower than it is; others are labels, times and weights."""


def stored_as(column: Column, feature_dtype: str | None) -> ColumnInfo:
    """What a node column becomes on disk.

    Raises:
        SpecError: There is no such type of features, or the column's type cannot be stored.
    """
    if feature_dtype is not None and feature_dtype not in FEATURE_DTYPES:
        raise SpecError(
            f"features cannot be stored as {feature_dtype!r}",
            f"use one of {', '.join(FEATURE_DTYPES)}",
        )
    dtype = np.dtype(column.dtype)
    name = dtype.name
    if name not in get_args(DTypeName):
        raise SpecError(f"column {column.name!r} is made of {name}", "turn it into numbers before")
    if feature_dtype is not None and column.name == FEATURES and dtype.kind == "f":
        name = feature_dtype
    return ColumnInfo(name=column.name, dtype=name, shape=tuple(column.shape))


def convert(rows: np.ndarray, dtype: str) -> np.ndarray:
    """Rows as they are stored; `bfloat16` as its bits.

    Raises:
        SpecError: A value is too large for `float16`.
    """
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
        out = np.empty(bits.shape, np.uint16)
        round_to_bfloat16(bits.reshape(-1), out.reshape(-1))
        return out
    try:
        with np.errstate(over="raise"):
            return rows.astype(numpy_dtype(dtype), copy=False)
    except FloatingPointError:
        raise SpecError(
            f"features have values that are too large for {dtype}", "store them as bfloat16"
        ) from None


def as_float32(bits: np.ndarray) -> np.ndarray:
    """The numbers that bits of `bfloat16` stand for."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
