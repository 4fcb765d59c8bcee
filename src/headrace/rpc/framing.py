"""Binary encoding of requests and replies.

A message is a frame: magic bytes, sizes and request number, then dtype and shape of each array,
then the fields (JSON). In requests the arrays follow, each aligned to 8 bytes. Arrays of replies
are sent outside the frame, so that large ones are not copied.

Every length is checked against the received bytes before memory is allocated.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.core.errors import SpecError

_MAGIC = b"HRS2"
# Magic bytes, number of arrays, bytes of the fields, number of the request.
_FRAME = struct.Struct("<4sIIQ")
_ALIGN = 8

MAX_FIELD_BYTES = 1 << 16
MAX_ARRAYS = 4
_MAX_DIMENSIONS = 8
_MAX_SIZE = 1 << 40
_MAX_REPLY_BYTES = 1 << 34

# Position in the list of dtypes, and shape; by number of dimensions.
_ARRAY = [struct.Struct(f"<BB{num}Q") for num in range(_MAX_DIMENSIONS + 1)]

MAX_FRAME_BYTES = _FRAME.size + MAX_ARRAYS * _ARRAY[-1].size + MAX_FIELD_BYTES

_DTYPES = [
    np.dtype(name)
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64",
    )
]  # fmt: skip
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}

# Creating an encoder takes longer than encoding the fields of a request.
_encode_fields = json.JSONEncoder(separators=(",", ":")).encode

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """A request or a reply: small values (JSON) and arrays.

    Attributes:
        number: Number of the request; its reply has the same.
        stream: Connection of a request at its server; 0 within a process.
    """

    number: int
    fields: Fields = field(default_factory=dict)
    arrays: tuple[np.ndarray, ...] = ()
    stream: int = 0


def encode_request(number: int, fields: Fields, arrays: Sequence[np.ndarray]) -> bytes:
    """Encode a request into one bytes object."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    pieces = [encode_frame(number, fields, arrays)]
    for array in arrays:
        pieces.append(bytes(-len(pieces[-1]) % _ALIGN))
        pieces.append(array.tobytes())
    return b"".join(pieces)


def encode_frame(number: int, fields: Fields, arrays: Sequence[np.ndarray]) -> bytes:
    """Encode the frame, without the arrays."""
    encoded = _encode_fields(fields).encode()
    try:
        described = [
            _ARRAY[array.ndim].pack(_CODES[array.dtype], array.ndim, *array.shape)
            for array in arrays
        ]
    except (KeyError, IndexError):
        kinds = ", ".join(f"{array.dtype} {array.shape}" for array in arrays)
        raise SpecError(f"arrays cannot be sent: {kinds}", "use numbers and few axes") from None
    return b"".join((_FRAME.pack(_MAGIC, len(arrays), len(encoded), number), *described, encoded))


def number_of(data: memoryview) -> int:
    """Number of a request that may be malformed; 0 if it cannot be read."""
    if len(data) < _FRAME.size:
        return 0
    magic, _, _, number = _FRAME.unpack_from(data)
    return int(number) if magic == _MAGIC else 0


def decode_request(data: memoryview, stream: int = 0) -> Message:
    """Decode a request; raises `SpecError` if it is malformed."""
    number, fields, described, at = _read_frame(data)
    arrays = []
    for dtype, shape in described:
        at += -at % _ALIGN
        count = math.prod(shape)
        num_bytes = count * dtype.itemsize
        if num_bytes > len(data) - at:
            raise _broken(f"an array needs {num_bytes} bytes, {max(len(data) - at, 0)} are left")
        array = np.empty(shape, dtype)
        if count:
            # A copy: kernels are compiled for aligned, writable arrays.
            array.reshape(-1)[:] = np.frombuffer(data, dtype, count, at)
        arrays.append(array)
        at += num_bytes
    if at != len(data):
        raise _broken(f"{len(data) - at} bytes follow the last array")
    return Message(number, fields, tuple(arrays), stream)


def decode_frame(data: memoryview) -> Message:
    """Decode the frame of a reply; its arrays are still to be filled with the following bytes."""
    number, fields, described, at = _read_frame(data)
    if at != len(data):
        raise _broken(f"{len(data) - at} bytes follow the header")
    num_bytes = sum(math.prod(shape) * dtype.itemsize for dtype, shape in described)
    if num_bytes > _MAX_REPLY_BYTES:
        raise _broken(f"arrays of {num_bytes} bytes")
    return Message(number, fields, tuple(np.empty(shape, dtype) for dtype, shape in described))


def _read_frame(
    data: memoryview,
) -> tuple[int, Fields, list[tuple[np.dtype, tuple[int, ...]]], int]:
    if len(data) < _FRAME.size:
        raise _broken(f"only {len(data)} bytes")
    magic, num_arrays, num_bytes, number = _FRAME.unpack_from(data)
    if magic != _MAGIC:
        raise _broken("wrong magic bytes")
    if num_arrays > MAX_ARRAYS:
        raise _broken(f"{num_arrays} arrays, at most {MAX_ARRAYS} are allowed")
    at, described = _FRAME.size, []
    for _ in range(num_arrays):
        dtype, shape = _read_array(data, at)
        described.append((dtype, shape))
        at += _ARRAY[len(shape)].size
    end = at + num_bytes
    if num_bytes > MAX_FIELD_BYTES or end > len(data):
        raise _broken(f"the fields have {num_bytes} bytes")
    try:
        fields = json.loads(str(data[at:end], "utf-8"))
    except (ValueError, RecursionError):
        raise _broken("the fields are not JSON") from None
    if not isinstance(fields, dict):
        raise _broken("the fields are not a mapping")
    return number, fields, described, end


def _read_array(data: memoryview, at: int) -> tuple[np.dtype, tuple[int, ...]]:
    num_dimensions = data[at + 1] if at + 2 <= len(data) else 0
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise _broken("an array has no shape")
    form = _ARRAY[num_dimensions]
    if at + form.size > len(data):
        raise _broken("an array has no shape")
    code, _, *shape = form.unpack_from(data, at)
    if code >= len(_DTYPES):
        raise _broken("an array has an unknown dtype")
    if max(shape) >= _MAX_SIZE:
        raise _broken("an array has an invalid shape")
    return _DTYPES[code], tuple(shape)


def _broken(why: str) -> SpecError:
    return SpecError(f"malformed store message: {why}", "use one headrace version everywhere")
