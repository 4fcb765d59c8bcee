"""Quantities with units: `10Gbps`, `48GiB`, `20ms`.

Internally bandwidth is in bytes per second, sizes in bytes and durations in seconds, all floats.
Plain numbers are in these units.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from headrace.core.errors import SpecError

_DIGITS = r"[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?"
_NUMBER = re.compile(rf"\s*({_DIGITS})\s*([A-Za-z/]*)\s*")

_SIZES = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12} | {
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
}
_RATES = {"bps": 1 / 8, "Kbps": 1e3 / 8, "Mbps": 1e6 / 8, "Gbps": 1e9 / 8, "Tbps": 1e12 / 8} | {
    f"{unit}/s": factor for unit, factor in _SIZES.items()
}
_DURATIONS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def quote(value: object) -> str:
    """Format a value for a message: shortened, without the contents of containers."""
    if isinstance(value, list | tuple | dict | set):
        return {list: "a list", tuple: "a list", dict: "a mapping"}.get(type(value), "a set")
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _parse(value: object, units: dict[str, float], what: str, example: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        if match:
            number, unit = match.groups()
            if not unit:
                return float(number)
            if unit in units:
                return float(number) * units[unit]
    raise SpecError(
        f"{quote(value)} is not a {what}", f"write it like {example} (units: {', '.join(units)})"
    )


def parse_bytes(value: object) -> float:
    """Parse a size such as `48GiB`; returns bytes."""
    return _parse(value, _SIZES, "size", "48GiB")


def parse_bytes_per_s(value: object) -> float:
    """Parse a bandwidth such as `10Gbps` (bits) or `1.25GB/s` (bytes); returns bytes per second."""
    return _parse(value, _RATES, "bandwidth", "10Gbps")


def parse_seconds(value: object) -> float:
    """Parse a duration such as `20ms`; returns seconds."""
    return _parse(value, _DURATIONS, "duration", "20ms")


def parse_amount(value: object) -> float:
    """Parse an amount of a named resource: a plain number, or a size such as `48GiB`."""
    return _parse(value, _SIZES, "resource amount", "8 or 48GiB")


def _is_no_bool(value: object) -> object:
    # bool is a subclass of int: without this check `trainers: yes` would mean 1 trainer.
    if isinstance(value, bool):
        raise SpecError(f"{value!r} is not a number", "write a number such as 4")
    return value


def format_bytes(num_bytes: float) -> str:
    """Format a size: `1.3 GB`."""
    return _scaled(num_bytes, (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)), "B")


def format_bytes_per_s(bytes_per_s: float) -> str:
    """Format a bandwidth in bits: `10 Gbps`."""
    return _scaled(
        bytes_per_s * 8, (("Tbps", 1e12), ("Gbps", 1e9), ("Mbps", 1e6), ("Kbps", 1e3)), "bps"
    )


def format_seconds(seconds: float) -> str:
    """Format a duration: `20 ms`."""
    if seconds >= 7200:
        return f"{_digits(seconds / 3600)} h"
    if seconds >= 120:
        return f"{_digits(seconds / 60)} min"
    return _scaled(seconds, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)), "s")


def _scaled(value: float, steps: tuple[tuple[str, float], ...], base: str) -> str:
    for unit, factor in steps:
        if abs(value) >= factor:
            return f"{_digits(value / factor)} {unit}"
    return f"{_digits(value)} {base}"


def _digits(value: float) -> str:
    # `g` switches to exponents above four digits.
    return f"{value:,.0f}" if abs(value) >= 9999.5 else f"{value:.4g}"


def _json_schema(units: dict[str, float], example: str, *, zero: bool) -> dict[str, Any]:
    return {
        "anyOf": [
            {"type": "number"} | ({"minimum": 0} if zero else {"exclusiveMinimum": 0}),
            {"type": "string", "pattern": rf"^\s*{_DIGITS}\s*({'|'.join(units)})?\s*$"},
        ],
        "examples": [example],
    }


SECONDS_SCHEMA = _json_schema(_DURATIONS, "20ms", zero=True)
"""JSON schema of a duration."""

BYTES_PER_S_SCHEMA = _json_schema(_RATES, "10Gbps", zero=False)
"""JSON schema of a bandwidth."""

Bytes = Annotated[
    float,
    BeforeValidator(parse_bytes),
    Field(ge=0),
    WithJsonSchema(_json_schema(_SIZES, "48GiB", zero=True)),
]
BytesPerS = Annotated[
    float, BeforeValidator(parse_bytes_per_s), Field(gt=0), WithJsonSchema(BYTES_PER_S_SCHEMA)
]
Seconds = Annotated[
    float, BeforeValidator(parse_seconds), Field(ge=0), WithJsonSchema(SECONDS_SCHEMA)
]
Amount = Annotated[
    float,
    BeforeValidator(parse_amount),
    Field(ge=0),
    WithJsonSchema(_json_schema(_SIZES, "8", zero=True)),
]
Count = Annotated[int, BeforeValidator(_is_no_bool)]
Number = Annotated[float, BeforeValidator(_is_no_bool)]
