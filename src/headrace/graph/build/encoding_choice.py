"""Choice of the stored form of a column: its dtype, or an encoding of its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.build.read_chunks import read_chunks
from headrace.graph.format.dtypes import FEATURE_DTYPES, stored_as
from headrace.graph.format.encoding import Encoding
from headrace.graph.format.manifest import FEATURES, ColumnInfo
from headrace.graph.format.row_codec import RowCodec
from headrace.graph.kernels import encoding as kernels
from headrace.graph.schema import Column, Watcher

AUTO = "auto"
"""Store features in the smallest lossless form."""

LOSSY: Final = ("int8", "int4")

FEATURE_FORMATS = (AUTO, *FEATURE_DTYPES, *LOSSY)


def check_features(features: str | None) -> None:
    """Raise SpecError if a form of features does not exist."""
    if features is not None and features not in FEATURE_FORMATS:
        raise SpecError(
            f"features cannot be stored as {features!r}", f"use one of {', '.join(FEATURE_FORMATS)}"
        )


def choose_form(
    column: Column, features: str | None, num_rows: int, watcher: Watcher | None = None
) -> ColumnInfo:
    """Describe how a node column is stored; with `auto`, all rows of `x` are read.

    Raises:
        SpecError: The column cannot be stored, or `features` is not one of `FEATURE_FORMATS`.
    """
    check_features(features)
    info = stored_as(column, features if features in FEATURE_DTYPES else None)
    if column.name != FEATURES or not column.shape or num_rows == 0 or not info.value_bytes:
        return info
    if features == AUTO:
        if watcher is not None:
            watcher.begin(f"choosing how to store {column.name}", num_rows)
        return _smallest(column, info, num_rows)
    return quantised(info, features) if features in LOSSY else info


def quantised(info: ColumnInfo, kind: str) -> ColumnInfo:
    """Describe how a column is stored as `int8` or `int4`; only floating-point features are."""
    if info.name != FEATURES or not info.value_bytes or not info.shape or "float" not in info.dtype:
        return info
    encoding = Encoding.model_validate({"kind": kind, "row_bytes": 0})
    codec = RowCodec(encoding, "float32", math.prod(info.shape))
    encoding = encoding.model_copy(update={"row_bytes": codec.stored_width})
    return info.model_copy(update={"dtype": "float32", "encoding": encoding})


def _smallest(column: Column, info: ColumnInfo, num_rows: int) -> ColumnInfo:
    width = math.prod(info.shape)
    itemsize = info.value_bytes // width
    words = np.empty(3, f"u{itemsize}")
    num_words, num_nonzero, is_half = 0, 0, info.dtype == "float32"
    for values in _values(column, num_rows):
        flat = values.view(words.dtype)
        if num_words < len(words):
            num_words = kernels.find_words(flat, words, num_words)
        num_nonzero += int(np.count_nonzero(flat))
        if is_half:
            with np.errstate(over="ignore"):
                halves = values.astype(np.float16).astype(np.float32)
            is_half = np.array_equal(halves.view(words.dtype), flat)
    forms = [info]
    if is_half:
        encoding = Encoding(kind="float16", row_bytes=2 * width)
        forms.append(info.model_copy(update={"encoding": encoding}))
    known = sorted(int(word) for word in words[:num_words])
    if num_words <= 2:
        pair = (*known, *known)[:2]
        encoding = Encoding(kind="bits", words=pair, row_bytes=-(-width // 8))
        forms.append(info.model_copy(update={"encoding": encoding}))
    if itemsize > 1:
        others = tuple(word for word in known if word) if num_words <= 2 else ()
        constant = others if len(others) == 1 else ()
        units = 2 if width >= kernels.WIDE else 1
        per_value = 2 * units + (0 if constant else itemsize)
        mean_bytes = 2 * units + per_value * num_nonzero / num_rows
        encoding = Encoding(kind="sparse", words=constant, row_bytes=mean_bytes)
        forms.append(info.model_copy(update={"encoding": encoding}))
    return min(forms, key=lambda form: form.row_bytes)


def _values(column: Column, num_rows: int) -> Iterator[np.ndarray]:
    for _, rows in read_chunks(column, num_rows):
        values = np.ascontiguousarray(rows).reshape(len(rows), -1)
        yield values.astype(values.dtype.newbyteorder("<"), copy=False)
