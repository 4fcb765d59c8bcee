from __future__ import annotations

import struct

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.rpc.framing import (
    MAX_FIELD_BYTES,
    decode_frame,
    decode_request,
    encode_frame,
    encode_request,
    number_of,
)

ARRAYS: list[np.ndarray] = [
    np.arange(7),
    np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2],
    np.empty((0, 4), np.float16),
    np.array([True, False]),
]


@pytest.mark.parametrize("shift", range(9))
def test_a_request_survives_whatever_its_address(shift: int) -> None:
    data = bytes(shift) + encode_request(2**63 + 5, {"op": "x", "n": [1, None]}, ARRAYS)
    message = decode_request(memoryview(data)[shift:])
    assert message.number == 2**63 + 5
    assert message.fields == {"op": "x", "n": [1, None]}
    for sent, received in zip(ARRAYS, message.arrays, strict=True):
        assert received.dtype == sent.dtype
        assert received.flags.aligned
        np.testing.assert_array_equal(received, sent)


def test_the_frame_of_a_reply_describes_its_arrays() -> None:
    message = decode_frame(memoryview(encode_frame(4, {"a": 1}, ARRAYS)))
    assert (message.number, message.fields) == (4, {"a": 1})
    for sent, empty in zip(ARRAYS, message.arrays, strict=True):
        assert (empty.shape, empty.dtype) == (sent.shape, sent.dtype)
        assert empty.flags.writeable


def test_a_frame_with_further_bytes_or_giant_arrays_is_refused() -> None:
    frame = encode_frame(4, {}, [np.arange(10)])
    with pytest.raises(SpecError, match="1 bytes follow"):
        decode_frame(memoryview(frame + b"x"))
    with pytest.raises(SpecError, match="malformed store message: arrays of"):
        decode_frame(memoryview(framed(b"{}", described(4, 2**32))))


def test_every_truncation_is_refused() -> None:
    data = encode_request(9, {"op": "gather"}, [np.arange(3), np.arange(4, dtype=np.int8)])
    for length in range(len(data)):
        with pytest.raises(SpecError, match="malformed store message"):
            decode_request(memoryview(data)[:length])
    with pytest.raises(SpecError, match="follow"):
        decode_request(memoryview(data + b"\0"))


def framed(fields: bytes, *arrays: bytes, body: bytes = b"") -> bytes:
    return (
        struct.pack("<4sIIQ", b"HRS2", len(arrays), len(fields), 3)
        + b"".join(arrays)
        + fields
        + body
    )


def described(code: int, *shape: int, num_dimensions: int | None = None) -> bytes:
    num = len(shape) if num_dimensions is None else num_dimensions
    return struct.pack(f"<BB{len(shape)}Q", code, num, *shape)


@pytest.mark.parametrize("fields", [b"[]", b"1", b"null", b'"x"', b"", b"{]", b"{} {}"])
def test_fields_that_are_no_mapping_are_refused(fields: bytes) -> None:
    with pytest.raises(SpecError, match="malformed store message"):
        decode_request(memoryview(framed(fields)))


@pytest.mark.parametrize(
    "arrays",
    [
        [b""], [b"\x04"], [described(4)], [described(4, num_dimensions=1)],
        [described(4, *[1] * 8, num_dimensions=9)], [described(12, 1)], [described(255, 1)],
        [described(4, 2**39)], [described(4, 2**62)], [described(4, 2**64 - 1)],
        [described(4, 2**39, 2**39)], [described(1, 0)] * 5,
    ],
)  # fmt: skip
def test_arrays_that_cannot_be_are_refused(arrays: list[bytes]) -> None:
    with pytest.raises(SpecError, match="malformed store message"):
        decode_request(memoryview(framed(b"{}", *arrays)))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"HRS2", bytes(20), b"\xff" * 40, b"GET / HTTP/1.1\r\n\r\n", framed(b"{"),
        framed(b"\xff"),
        framed(b"[" * 60000), framed(b"9" * 5000), framed(b"{}" + b" " * MAX_FIELD_BYTES),
        struct.pack("<4sIIQ", b"HRS2", 0, 2**32 - 1, 1),
        struct.pack("<4sIIQ", b"HRS2", 2**32 - 1, 2, 1) + b"{}",
        struct.pack("<4sIIQ", b"HRS1", 0, 2, 1) + b"{}",
    ],
)  # fmt: skip
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(SpecError, match="malformed store message"):
        decode_request(memoryview(data))


def test_the_number_is_read_even_if_the_rest_is_broken() -> None:
    assert number_of(memoryview(framed(b"{"))) == 3
    assert number_of(memoryview(b"HRS2")) == 0
    assert number_of(memoryview(bytes(40))) == 0
