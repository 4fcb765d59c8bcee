"""Binary encoding of requests and replies.

A message is a frame: magic bytes, header length and request number, then the header (JSON). In
requests the arrays follow, each aligned to 8 bytes. Arrays of replies are sent outside the frame,
so that large ones are not copied.

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

_MAGIC = b"HRS1"
_FRAME = struct.Struct("<4sIQ")
_ALIGN = 8

MAX_HEADER_BYTES = 1 << 16
MAX_FRAME_BYTES = _FRAME.size + MAX_HEADER_BYTES
MAX_ARRAYS = 4
_MAX_REPLY_BYTES = 1 << 34

_DTYPES = {
    np.dtype(name).name: np.dtype(name)
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64",
    )
}  # fmt: skip
_MAX_DIMENSIONS = 8

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
    described = [[array.dtype.name, list(array.shape)] for array in arrays]
    header = json.dumps({"fields": fields, "arrays": described}, separators=(",", ":")).encode()
    return _FRAME.pack(_MAGIC, len(header), number) + header


def number_of(data: memoryview) -> int:
    """Number of a request that may be malformed; 0 if it cannot be read."""
    if len(data) < _FRAME.size:
        return 0
    magic, _, number = _FRAME.unpack_from(data)
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


def _read_frame(data: memoryview) -> tuple[int, Fields, list[tuple[np.dtype, list[int]]], int]:
    if len(data) < _FRAME.size:
        raise _broken(f"only {len(data)} bytes")
    magic, length, number = _FRAME.unpack_from(data)
    if magic != _MAGIC:
        raise _broken("wrong magic bytes")
    if length > min(MAX_HEADER_BYTES, len(data) - _FRAME.size):
        raise _broken(f"the header has {length} bytes")
    end = _FRAME.size + length
    try:
        header = json.loads(bytes(data[_FRAME.size : end]))
    except (ValueError, RecursionError):
        raise _broken("the header is not JSON") from None
    if not isinstance(header, dict) or header.keys() != {"fields", "arrays"}:
        raise _broken("the header lacks fields or arrays")
    fields, described = header["fields"], header["arrays"]
    if not isinstance(fields, dict) or not isinstance(described, list):
        raise _broken("fields or arrays have the wrong type")
    if len(described) > MAX_ARRAYS:
        raise _broken(f"{len(described)} arrays, at most {MAX_ARRAYS} are allowed")
    return int(number), fields, [_read_array(array) for array in described], end


def _read_array(described: object) -> tuple[np.dtype, list[int]]:
    if not isinstance(described, list) or len(described) != 2:
        raise _broken("an array description is not a dtype and a shape")
    name, shape = described
    if not isinstance(name, str) or name not in _DTYPES:
        raise _broken("an array has an unknown dtype")
    if not isinstance(shape, list) or not 1 <= len(shape) <= _MAX_DIMENSIONS:
        raise _broken("an array has no shape")
    if any(type(size) is not int or not 0 <= size < 2**40 for size in shape):
        raise _broken("an array has an invalid shape")
    return _DTYPES[name], shape


def _broken(why: str) -> SpecError:
    return SpecError(f"malformed store message: {why}", "use one headrace version everywhere")
