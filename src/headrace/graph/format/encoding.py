"""Encodings of feature columns: files, replies, caches and sub-batches on the network are encoded.

`bits`, `sparse` and `float16` are lossless: they are used for values that they represent exactly.
`int8` and `int4` round every value of a row to one of 256 or 16 equal steps from the row's least to
its greatest value; the error is at most half a step.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headrace.core.values import Value

EncodingName = Literal["bits", "sparse", "float16", "int8", "int4"]


class Encoding(Value):
    """How the rows of a column are stored.

    Attributes:
        kind: `bits` for two distinct values, `sparse` for mostly zeros, `float16` for `float32`
            values that it represents exactly, `int8` and `int4` for a byte or half a byte per value
            with scale and offset per row.
        words: Bits of the values, as unsigned integers: of both for `bits`; of the only non-zero
            value for `sparse`, empty if there are several.
        row_bytes: Mean size of a stored row.
    """

    kind: EncodingName
    words: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**64)], ...], Field(max_length=2)] = ()
    row_bytes: Annotated[float, Field(ge=0)]
