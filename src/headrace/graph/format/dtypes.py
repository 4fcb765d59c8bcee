"""Conversion of columns to stored dtypes: little-endian, features optionally narrowed."""

from __future__ import annotations

from typing import get_args

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.format.manifest import FEATURES, ColumnInfo, DTypeName, numpy_dtype
from headrace.graph.kernels.writing import round_to_bfloat16
from headrace.graph.schema import Column

FEATURE_DTYPES = ("float32", "float16", "bfloat16")


def stored_as(column: Column, feature_dtype: str | None) -> ColumnInfo:
    """Describe how a column is stored; `feature_dtype` is one of `FEATURE_DTYPES`, for features."""
    dtype = np.dtype(column.dtype)
    name = dtype.name
    if name not in get_args(DTypeName):
        raise SpecError(f"column {column.name!r} has dtype {name}", "convert it to numbers first")
    if feature_dtype is not None and column.name == FEATURES and dtype.kind == "f":
        name = feature_dtype
    return ColumnInfo(name=column.name, dtype=name, shape=tuple(column.shape))


def convert(rows: np.ndarray, dtype: str) -> np.ndarray:
    """Convert rows to the stored dtype; `bfloat16` is returned as `uint16` bits."""
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
            f"features contain values that are too large for {dtype}", "store them as bfloat16"
        ) from None
