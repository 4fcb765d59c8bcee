from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.rpc.framing import (
    MAX_HEADER_BYTES,
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
    giant = {"fields": {}, "arrays": [["int64", [2**32]]]}
    with pytest.raises(SpecError, match="malformed store message: arrays of"):
        decode_frame(memoryview(framed(json.dumps(giant).encode())))


def test_every_truncation_is_refused() -> None:
    data = encode_request(9, {"op": "gather"}, [np.arange(3), np.arange(4, dtype=np.int8)])
    for length in range(len(data)):
        with pytest.raises(SpecError, match="malformed store message"):
            decode_request(memoryview(data)[:length])
    with pytest.raises(SpecError, match="follow"):
        decode_request(memoryview(data + b"\0"))


def framed(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<4sIQ", b"HRS1", len(header), 3) + header + body


HEADERS: list[object] = [
    [], 1, None, "x", {}, {"fields": {}}, {"fields": [], "arrays": []},
    {"fields": {}, "arrays": {}},
    {"fields": {}, "arrays": [], "more": 1},
    *({"fields": {}, "arrays": [array]} for array in (
        None, [], ["int64"], ["int64", 3], ["int64", []], ["object", [1]], ["O", [1]], [7, [1]],
        ["int64", [-1]], ["int64", [1.0]], ["int64", [True]], ["int64", ["1"]], ["int64", [2**39]],
        ["int64", [2**62]], ["int64", [2**80]], ["int64", [2**39, 2**39]], ["int64", [1] * 9],
        ["int64", [1], 1], [["int64"], [1]], ["datetime64", [1]], ["float128", [1]], ["", [1]],
    )),
    {"fields": {}, "arrays": [["int8", [0]]] * 5},
]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS, ids=str)
def test_a_header_that_says_something_else_is_refused(header: object) -> None:
    with pytest.raises(SpecError, match="malformed store message"):
        decode_request(memoryview(framed(json.dumps(header).encode())))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"HRS1", bytes(16), b"\xff" * 40, b"GET / HTTP/1.1\r\n\r\n", framed(b"{"),
        framed(b"\xff"),
        framed(b"[" * 60000), framed(b"9" * 5000), framed(b"{}" + b" " * MAX_HEADER_BYTES),
        struct.pack("<4sIQ", b"HRS1", 2**32 - 1, 1), struct.pack("<4sIQ", b"HRS2", 2, 1) + b"{}",
    ],
)  # fmt: skip
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(SpecError, match="malformed store message"):
        decode_request(memoryview(data))


def test_the_number_is_read_even_if_the_rest_is_broken() -> None:
    assert number_of(memoryview(framed(b"{"))) == 3
    assert number_of(memoryview(b"HRS1")) == 0
    assert number_of(memoryview(bytes(40))) == 0
