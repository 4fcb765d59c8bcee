"""Quantities as people write them: `10Gbps`, `48GiB`, `20ms`.

Inside headrace bandwidth is bytes per second, sizes are bytes, durations are seconds; all are floats.
Plain numbers are taken to be in those units already.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*")

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
    raise ValueError(f"{value!r} is not a {what}: write it like {example} (units: {', '.join(units)})")


def parse_bytes(value: object) -> float:
    """Read a size such as `48GiB`; returns bytes."""
    return _parse(value, _SIZES, "size", "48GiB")


def parse_bytes_per_s(value: object) -> float:
    """Read a bandwidth such as `10Gbps` (bits) or `1.25GB/s` (bytes); returns bytes per second."""
    return _parse(value, _RATES, "bandwidth", "10Gbps")


def parse_seconds(value: object) -> float:
    """Read a duration such as `20ms`; returns seconds."""
    return _parse(value, _DURATIONS, "duration", "20ms")


def parse_amount(value: object) -> float:
    """Read an amount of a named resource: a plain number, or a size such as `48GiB`."""
    return _parse(value, _SIZES, "resource amount", "8 or 48GiB")


def format_bytes(num_bytes: float) -> str:
    """Write a size for people: `1.30 GB`."""
    return _scaled(num_bytes, (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)), "B")


def format_bytes_per_s(bytes_per_s: float) -> str:
    """Write a bandwidth for people, in bits: `10 Gbps`."""
    return _scaled(bytes_per_s * 8, (("Tbps", 1e12), ("Gbps", 1e9), ("Mbps", 1e6), ("Kbps", 1e3)), "bps")


def format_seconds(seconds: float) -> str:
    """Write a duration for people: `20.0 ms`."""
    if seconds >= 120:
        return f"{seconds / 60:.4g} min"
    return _scaled(seconds, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)), "s")


def _scaled(value: float, steps: tuple[tuple[str, float], ...], base: str) -> str:
    for unit, factor in steps:
        if abs(value) >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value:.4g} {base}"


Bytes = Annotated[float, BeforeValidator(parse_bytes), Field(ge=0, allow_inf_nan=False)]
BytesPerS = Annotated[float, BeforeValidator(parse_bytes_per_s), Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(ge=0, allow_inf_nan=False)]
Amount = Annotated[float, BeforeValidator(parse_amount), Field(ge=0, allow_inf_nan=False)]
