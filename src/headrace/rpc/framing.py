"""What client and store say to each other, as bytes and arrays.

A message is a frame: four letters, the length of its header and the number of the request; then
the header (JSON); then, in requests, the arrays, each at a multiple of 8 bytes. Arrays of replies
travel beside the frame, so that large ones are not copied.

Every length is checked against the bytes that are there before anything is made from it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
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
    """A request or a reply.

    Attributes:
        number: Of the request; its reply has the same.
        fields: Small values; whatever JSON can say.
        arrays: Large values.
    """

    number: int
    fields: Fields = field(default_factory=dict)
    arrays: tuple[np.ndarray, ...] = ()


def encode_request(number: int, fields: Fields, arrays: Sequence[np.ndarray]) -> bytes:
    """Write a request into one piece of memory."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    pieces = [encode_frame(number, fields, arrays)]
    for array in arrays:
        pieces.append(bytes(-len(pieces[-1]) % _ALIGN))
        pieces.append(array.tobytes())
    return b"".join(pieces)


def encode_frame(number: int, fields: Fields, arrays: Sequence[np.ndarray]) -> bytes:
    """Write what goes before, or beside, the arrays."""
    described = [[array.dtype.name, list(array.shape)] for array in arrays]
    header = json.dumps({"fields": fields, "arrays": described}, separators=(",", ":")).encode()
    return _FRAME.pack(_MAGIC, len(header), number) + header


def number_of(data: memoryview) -> int:
    """Number of a request that may be broken; 0 if not even that can be read."""
    if len(data) < _FRAME.size:
        return 0
    magic, _, number = _FRAME.unpack_from(data)
    return int(number) if magic == _MAGIC else 0


def decode_request(data: memoryview) -> Message:
    """Read a request.

    Raises:
        SpecError: It is no request, or not a whole one.
    """
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
            # A copy, since kernels are compiled for aligned arrays that can be written to.
            array.reshape(-1)[:] = np.frombuffer(data, dtype, count, at)
        arrays.append(array)
        at += num_bytes
    if at != len(data):
        raise _broken(f"{len(data) - at} bytes follow the last array")
    return Message(number, fields, tuple(arrays))


def decode_reply(data: memoryview, buffers: Sequence[Any]) -> Message:
    """Read a reply.

    Args:
        data: The frame.
        buffers: Memory of the arrays; each has an `address` and a `size`, and is kept as long as
            its array. Arrays can be written to: nobody else has this memory.

    Raises:
        SpecError: It is no reply, or not a whole one.
    """
    number, fields, described, at = _read_frame(data)
    if at != len(data) or len(described) > len(buffers):
        raise _broken("its arrays are missing")
    arrays = []
    for (dtype, shape), buffer in zip(described, buffers, strict=False):
        if math.prod(shape) * dtype.itemsize > buffer.size:
            raise _broken(f"an array has {buffer.size} bytes instead of {dtype} {shape}")
        memory = _Memory(buffer, dtype, tuple(shape))
        array = np.empty(shape, dtype) if 0 in shape else np.asarray(memory)
        arrays.append(np.require(array, requirements="A"))
    return Message(number, fields, tuple(arrays))


def receive_reply(data: memoryview, fill: Callable[[memoryview], None]) -> Message:
    """Read a reply whose arrays follow, each into memory of its own.

    Args:
        data: The frame.
        fill: Fills memory with the next bytes.

    Raises:
        SpecError: It is no reply.
    """
    number, fields, described, at = _read_frame(data)
    if at != len(data):
        raise _broken(f"{len(data) - at} bytes follow the header")
    arrays = [np.empty(shape, dtype) for dtype, shape in described]
    for array in arrays:
        fill(array.reshape(-1).view(np.uint8).data)
    return Message(number, fields, tuple(arrays))


class _Memory:
    """Shows numpy memory that something else owns, and keeps the owner."""

    def __init__(self, owner: Any, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (owner.address, False),
        }


def _read_frame(data: memoryview) -> tuple[int, Fields, list[tuple[np.dtype, list[int]]], int]:
    if len(data) < _FRAME.size:
        raise _broken(f"it has only {len(data)} bytes")
    magic, length, number = _FRAME.unpack_from(data)
    if magic != _MAGIC:
        raise _broken("it begins with something else")
    if length > min(MAX_HEADER_BYTES, len(data) - _FRAME.size):
        raise _broken(f"its header has {length} bytes")
    end = _FRAME.size + length
    try:
        header = json.loads(bytes(data[_FRAME.size : end]))
    except (ValueError, RecursionError):
        raise _broken("its header is no JSON") from None
    if not isinstance(header, dict) or header.keys() != {"fields", "arrays"}:
        raise _broken("its header lacks fields or arrays")
    fields, described = header["fields"], header["arrays"]
    if not isinstance(fields, dict) or not isinstance(described, list):
        raise _broken("its fields or arrays are not what they should be")
    if len(described) > MAX_ARRAYS:
        raise _broken(f"it has {len(described)} arrays, {MAX_ARRAYS} are allowed")
    return int(number), fields, [_read_array(array) for array in described], end


def _read_array(described: object) -> tuple[np.dtype, list[int]]:
    if not isinstance(described, list) or len(described) != 2:
        raise _broken("an array is described by something else than a type and a shape")
    name, shape = described
    if not isinstance(name, str) or name not in _DTYPES:
        raise _broken("an array has an unknown type")
    if not isinstance(shape, list) or not 1 <= len(shape) <= _MAX_DIMENSIONS:
        raise _broken("an array has no shape")
    if any(type(size) is not int or not 0 <= size < 2**40 for size in shape):
        raise _broken("an array has an impossible shape")
    return _DTYPES[name], shape


def _broken(why: str) -> SpecError:
    return SpecError(f"this is no message of a store: {why}", "use the same version everywhere")
