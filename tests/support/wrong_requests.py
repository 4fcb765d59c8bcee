"""Requests that no client of ours would send, made from those that one would."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.rpc.framing import encode_request

NUMBER = 77

DTYPES = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64", "float16")
VALUES: Mapping[str, Any] = {
    "null": None,
    "a number": 3,
    "a fraction": 0.5,
    "not finite": float("nan"),
    "negative": -7,
    "huge": 10**300,
    "a text": "x",
    "a long text": "y" * 5000,
    "a list": [1, 2],
    "a deep list": [[[[[[[[]]]]]]]],
    "a mapping": {"a": 1},
    "true": True,
}


_NODES = np.array([1, 2, 3])
SAMPLE = {
    "op": "sample", "edge_type": ["node", "to", "node"], "fanout": 3, "key": 5, "replace": False,
    "disjoint": False, "last": False, "edge_ids": True, "labor": False, "has_trees": False,
    "has_bounds": False, "weight": None, "time": None, "far": 1.0, "near": None,
}  # fmt: skip
_FLAGS = ("replace", "disjoint", "edge_ids", "labor")

Requests = Mapping[str, tuple[dict[str, Any], list[np.ndarray], dict[str, set[str]]]]
"""By operation: the fields and arrays of a right request, and values that are right by chance."""

STORE_REQUESTS: Requests = {
    "sample": (
        SAMPLE,
        [_NODES],
        {
            "fanout": {"a number"},
            "key": {"a number"},
            "weight": {"null"},
            "time": {"null"},
            "near": {"null"},
            **{flag: {"true"} for flag in _FLAGS},
        },
    ),
    "gather": (
        {"op": "gather", "of": "node", "column": "x", "has_dims": True},
        [_NODES, np.array([0, 1])],
        {"column": {"a text"}, "has_dims": {"true"}},
    ),
    "embed": ({"op": "embed", "of": "node", "column": "more", "spec": {"dim": 2}}, [], {}),
    "push": (
        {
            "op": "push",
            "of": "node",
            "column": "spare",
            "rank": 0,
            "round": 1,
            "piece": 0,
            "num_pieces": 1,
            "has_any": True,
            "lr": 0.5,
        },
        [_NODES, np.ones((3, 6), np.float32)],
        {"num_pieces": {"a number"}, "has_any": {"true"}, "lr": {"a number", "a fraction"}},
    ),
    "put": (
        {"op": "put", "of": "node", "column": "spare", "num_steps": 1},
        [_NODES, np.ones((3, 6), np.float32)],
        {"num_steps": {"a number"}},
    ),
    "status": ({"op": "status"}, [], {}),
    "ping": ({"op": "ping"}, [], {}),
}
SAMPLER_REQUESTS: Requests = {"next": ({"op": "next"}, [], {}), "ping": ({"op": "ping"}, [], {})}

SERVER_PIECES = [np.array([2, 1]), np.array([0, 0]), np.ones(3, np.float32)]


def server_begin(options: list[dict[str, Any]]) -> dict[str, Any]:
    """The request with which trainers begin a model, with SGD's options."""
    return {
        "op": "begin", "model": 7, "rank": 0, "optimizer": "SGD", "options": options,
        "dtype": "float32",
    }  # fmt: skip


def server_requests(options: list[dict[str, Any]]) -> Requests:
    """Requests to a parameter server."""
    return {
        "begin": (server_begin(options), SERVER_PIECES, {"model": {"a number"}}),
        "wait": ({"op": "wait", "model": 9, "step": 1}, [], {}),
        "state": ({"op": "state", "model": 9, "name": "step"}, [], {}),
        "forget": ({"op": "forget", "model": 9}, [], {}),
        "ping": ({"op": "ping"}, [], {}),
    }


NUMSAMPLED = 20
"""Wrong requests of each service that go over the wire; all of them are put to its handlers."""


def all_wrong(requests: Requests) -> dict[str, bytes]:
    """All wrong requests of a service, by what is wrong."""
    return {
        f"{operation}: {what}": data
        for operation, (fields, arrays, valid) in requests.items()
        for what, data in hostile_requests(fields, arrays, valid)
    }


def sampled(requests: Mapping[str, bytes], seed: int = 0) -> Sequence[tuple[str, bytes]]:
    """The same few of them each time."""
    chosen = np.random.default_rng(seed).choice(len(requests), NUMSAMPLED, replace=False)
    every = list(requests.items())
    return [every[i] for i in sorted(chosen)]


def problem_of(number: int, fields: Mapping[str, Any], num_arrays: int) -> str | None:
    """What is wrong with the reply to a wrong request; none if it is a refusal."""
    if number not in (0, NUMBER):
        return f"it has number {number}"
    if not fields.get("problem"):
        return f"it is answered: {fields}"
    if fields["problem"] == "the store failed to answer":
        return "the handler failed"
    return f"it has {num_arrays} arrays" if num_arrays else None


def _frame(
    fields: bytes, arrays: bytes = b"", num_arrays: int = 0, length: int | None = None
) -> bytes:
    length = len(fields) if length is None else length
    return struct.pack("<4sIIQ", b"HRS2", num_arrays, length, NUMBER) + arrays + fields


def hostile_requests(
    fields: Mapping[str, Any], arrays: list[np.ndarray], valid: Mapping[str, set[str]]
) -> Iterator[tuple[str, bytes]]:
    """Wrong variants of a right request.

    Args:
        fields: Of the right one.
        arrays: Of the right one.
        valid: Per field, values of `VALUES` that happen to be right.
    """
    good = encode_request(NUMBER, fields, arrays)
    yield from _broken_frames(good)
    for name in fields:
        rest = {key: value for key, value in fields.items() if key != name}
        yield f"without {name}", encode_request(NUMBER, rest, arrays)
        for what, value in VALUES.items():
            if what not in valid.get(name, ()):
                yield f"{name} is {what}", encode_request(NUMBER, {**fields, name: value}, arrays)
    for what, value in VALUES.items():
        yield f"more: {what}", encode_request(NUMBER, {**fields, "more": value}, arrays)
    more: list[np.ndarray] = [*arrays, np.arange(3)]
    yield "one array too many", encode_request(NUMBER, fields, more)
    for i, array in enumerate(arrays):
        yield f"array {i} missing", encode_request(NUMBER, fields, arrays[:i] + arrays[i + 1 :])
        for dtype in DTYPES:
            changed = [*arrays[:i], array.astype(dtype), *arrays[i + 1 :]]
            yield f"array {i} is {dtype}", encode_request(NUMBER, fields, changed)
        for what, other in (("deeper", array[None]), ("a row short", array[:-1])):
            if what == "a row short" and array.ndim == 1:
                continue
            changed = [*arrays[:i], other, *arrays[i + 1 :]]
            yield f"array {i} is {what}", encode_request(NUMBER, fields, changed)
    if arrays:
        yield from _wrong_ids(fields, arrays)


def _wrong_ids(fields: Mapping[str, Any], arrays: list[np.ndarray]) -> Iterator[tuple[str, bytes]]:
    for wrong in (-1, -(2**63), 2**63 - 1, 2**31, 10**6, 2**62):
        for at in (0, len(arrays[0]) - 1):
            ids = arrays[0].copy()
            ids[at] = wrong
            data = encode_request(NUMBER, fields, [ids, *arrays[1:]])
            yield f"id {wrong} at {at}", data
    many = np.full(5000, arrays[0][0])
    yield "too many ids", encode_request(NUMBER, fields, [many, *arrays[1:]])


def _broken_frames(good: bytes) -> Iterator[tuple[str, bytes]]:
    for length in sorted({1, 3, 4, 8, 15, 19, 20, 21, len(good) // 2, len(good) - 1}):
        yield f"cut at {length}", good[:length]
    for extra in (1, 8, 4096):
        yield f"{extra} bytes more", good + bytes(extra)
    for at in (0, 3, 4, 7, 8, 11, 20, 21, 30):
        yield f"byte {at} flipped", good[:at] + bytes([good[at] ^ 0x80]) + good[at + 1 :]
    for length in (0, 1, 2**16, 2**31, 2**32 - 1):
        yield f"fields of {length} bytes", _frame(good[20:], length=length)
    for what, header in (
        ("a list", b"[]"), ("nested", b"[" * 60000), ("digits", b"9" * 60000),
        ("no text", b"\xff" * 9), ("nothing", b"{}"), ("null", b"null"), ("empty", b""),
    ):  # fmt: skip
        yield f"fields are {what}", _frame(header)
    for count in (2**31, 2**39, 2**63, 2**64 - 1):
        described = struct.pack("<BBQ", 11, 1, count)
        yield f"an array of {count}", _frame(b"{}", described, 1) + bytes(64)
    for num_arrays in (1, 2, 5, 2**31, 2**32 - 1):
        yield f"{num_arrays} arrays that are missing", _frame(b"{}", b"", num_arrays)
    rng = np.random.default_rng(0)
    for i in range(5):
        yield f"noise {i}", rng.bytes(1 + 100 * i)
        yield f"framed noise {i}", _frame(rng.bytes(1 + 100 * i))
