"""Requests with random mistakes, made from right ones; a seed gives the same request each time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.core.errors import HeadraceError
from headrace.rpc.framing import encode_request
from tests.support.wrong_requests import NUMBER, VALUES

Draw = np.random.Generator
Right = tuple[Mapping[str, Any], Sequence[np.ndarray]]
"""Fields and arrays of a request that is answered."""

TEXTS = (
    "", "x", "é", "\ud800", "\0", "../../etc/passwd", "'; --", "node", "a" * 300, "NaN", "7",
    "begin", "next", "{}", "%s%n",
)  # fmt: skip
NUMBERS: tuple[float, ...] = (
    0, 1, 2, 3, 7, -1, -7, 63, 64, 255, 256, 65535, 65536, 2**31, 2**31 - 1, 2**53, 2**63, 2**64,
    -(2**63), 10**300, 0.0, 0.5, 0.9, 0.999, 1.0, 1.0000001, 1e-320, 1e29, 1e31, -0.0, -0.5,
    float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
_DTYPES = ("bool", "int8", "int32", "int64", "uint8", "uint64", "float16", "float32", "float64")


def pick(draw: Draw, values: Sequence[Any]) -> Any:
    """One of some values, as it is."""
    return values[int(draw.integers(len(values)))]


def any_value(draw: Draw, depth: int = 0) -> Any:
    """Any value that JSON can hold."""
    kind = int(draw.integers(6 if depth < 3 else 4))
    if kind == 0:
        return pick(draw, TEXTS)
    if kind == 1:
        return pick(draw, NUMBERS)
    if kind == 2:
        return pick(draw, (None, True, False, [], {}))
    if kind == 3:
        return pick(draw, list(VALUES.values()))
    if kind == 4:
        return [any_value(draw, depth + 1) for _ in range(int(draw.integers(4)))]
    return {pick(draw, TEXTS): any_value(draw, depth + 1) for _ in range(int(draw.integers(4)))}


def mutated(draw: Draw, value: Any) -> Any:
    """A value of which something is different; the value itself is not changed."""
    if isinstance(value, Mapping) and value and draw.random() < 0.8:
        fields = dict(value)
        name = pick(draw, list(fields))
        how = draw.random()
        if how < 0.15:
            del fields[name]
        elif how < 0.25:
            fields[pick(draw, TEXTS)] = any_value(draw)
        else:
            fields[name] = mutated(draw, fields[name])
        return fields
    if isinstance(value, list | tuple) and value and draw.random() < 0.8:
        items = list(value)
        at = int(draw.integers(len(items)))
        how = draw.random()
        if how < 0.15:
            del items[at]
        elif how < 0.3:
            items.insert(at, pick(draw, items))
        else:
            items[at] = mutated(draw, items[at])
        return items
    if isinstance(value, bool) and draw.random() < 0.6:
        return not value
    if isinstance(value, int | float) and draw.random() < 0.7:
        return pick(draw, NUMBERS)
    return any_value(draw)


def mutated_array(draw: Draw, array: np.ndarray) -> np.ndarray:
    """An array with another dtype, another shape, or other values."""
    how = int(draw.integers(5))
    with np.errstate(all="ignore"):
        if how == 0:
            return array.astype(pick(draw, _DTYPES))
        if how == 1:
            return pick(draw, (array[:-1], array[None], np.repeat(array, 2, 0), array[:0]))  # type: ignore[no-any-return]
        changed = array.copy()
        if changed.size == 0:
            return np.zeros(int(draw.integers(1, 5)), array.dtype)
        at = int(draw.integers(changed.size))
        number = pick(draw, NUMBERS)
        if changed.dtype.kind == "f":
            changed.reshape(-1)[at] = np.float64(number)
        elif changed.dtype.kind == "b":
            changed.reshape(-1)[at] = not changed.reshape(-1)[at]
        else:
            limits = np.iinfo(changed.dtype)
            whole = int(number) if math.isfinite(number) else -3
            changed.reshape(-1)[at] = min(max(whole, limits.min), limits.max)
        return changed


def mutated_bytes(draw: Draw, data: bytes) -> bytes:
    """Bytes with some flipped, missing or added."""
    changed = bytearray(data)
    for _ in range(int(draw.integers(1, 4))):
        how, at = draw.random(), int(draw.integers(len(changed) + 1))
        if how < 0.6 and at < len(changed):
            changed[at] ^= 1 << int(draw.integers(8))
        elif how < 0.8:
            del changed[at:]
        else:
            changed[at:at] = draw.bytes(int(draw.integers(1, 40)))
    return bytes(changed)


def fuzzed_message(draw: Draw, right: Right) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Fields and arrays with up to three mistakes, or none."""
    fields, arrays = dict(right[0]), list(right[1])
    for _ in range(int(draw.integers(4))):
        if arrays and draw.random() < 0.4:
            at = int(draw.integers(len(arrays)))
            how = draw.random()
            if how < 0.15:
                del arrays[at]
            elif how < 0.25:
                arrays.insert(at, arrays[at])
            else:
                arrays[at] = mutated_array(draw, arrays[at])
        else:
            changed = mutated(draw, fields)
            fields = changed if isinstance(changed, dict) else fields
    return fields, arrays


def fuzzed_request(draw: Draw, rights: Sequence[Right]) -> tuple[str, bytes]:
    """A request to an RPC service, and a name for it."""
    fields, arrays = fuzzed_message(draw, pick(draw, rights))
    try:
        data = encode_request(NUMBER, fields, arrays)
    except (HeadraceError, ValueError):
        # Nobody could send it: text that is not UTF-8, or an array without axes.
        data = encode_request(NUMBER, {"op": "ping", "more": 1}, [])
    if draw.random() < 0.2:
        data = mutated_bytes(draw, data)
    return str(fields.get("op"))[:20], data


def fuzzed_line(draw: Draw, rights: Sequence[Mapping[str, Any]]) -> bytes:
    """A JSON object with mistakes; sometimes its bytes have mistakes too."""
    message = pick(draw, rights)
    for _ in range(int(draw.integers(4))):
        message = mutated(draw, message)
    try:
        data = json.dumps(message, ensure_ascii=bool(draw.random() < 0.5)).encode()
    except UnicodeEncodeError:
        data = json.dumps(message).encode()
    how = draw.random()
    if how < 0.02:
        data = b"[" * int(draw.integers(10, 60_000))
    elif how < 0.04:
        data = b"9" * int(draw.integers(10, 60_000))
    elif how < 0.2:
        data = mutated_bytes(draw, data)
    return data
