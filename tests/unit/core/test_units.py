from __future__ import annotations

import pytest

from headrace.core.errors import SpecError
from headrace.core.units import (
    format_bytes,
    format_bytes_per_s,
    format_seconds,
    parse_amount,
    parse_bytes,
    parse_bytes_per_s,
    parse_seconds,
    quote,
)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("10Gbps", 1.25e9), ("8 bps", 1.0), ("1.25GB/s", 1.25e9), ("1MiB/s", 2**20), (7, 7.0)],
)
def test_bandwidth_is_bits_unless_it_says_bytes(text: object, bytes_per_s: float) -> None:
    assert parse_bytes_per_s(text) == pytest.approx(bytes_per_s)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("48GiB", 48 * 2**30), ("48GB", 48e9), (" 5 KB ", 5e3), ("1e3", 1e3), (".5MB", 5e5), (0, 0)],
)
def test_sizes(text: object, num_bytes: float) -> None:
    assert parse_bytes(text) == num_bytes
    assert parse_amount(text) == num_bytes


@pytest.mark.parametrize(
    ("text", "seconds"), [("20ms", 0.02), ("1us", 1e-6), ("2min", 120.0), ("1h", 3600.0), (3, 3.0)]
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["fast", "10", "10GBps", "10gbps", "-1Gbps", "1 2Gbps", "", "Gbps"]
)
def test_wrong_bandwidths(text: str) -> None:
    if text == "10":
        assert parse_bytes_per_s(text) == 10.0
        return
    with pytest.raises(SpecError, match=r"is not a bandwidth: write it like 10Gbps \(units: bps, "):
        parse_bytes_per_s(text)


@pytest.mark.parametrize("value", [None, True, [1], {"a": 1}, b"1GB"])
def test_only_numbers_and_text_are_quantities(value: object) -> None:
    for parse in (parse_bytes, parse_bytes_per_s, parse_seconds, parse_amount):
        with pytest.raises(SpecError):
            parse(value)


def test_quote_is_short() -> None:
    assert quote("10GB") == "'10GB'"
    assert quote(None) == "nothing"
    assert quote([1, 2]) == "a list"
    assert quote({"a": 1}) == "a mapping"
    assert len(quote("x" * 1000)) == 60


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (3e-9, "3 ns"),
        (0.02, "20 ms"),
        (1.5, "1.5 s"),
        (90, "90 s"),
        (600, "10 min"),
        (7200, "2 h"),
        (3.6e8, "100,000 h"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_format_sizes() -> None:
    assert format_bytes(1.3e9) == "1.3 GB"
    assert format_bytes(12) == "12 B"
    assert format_bytes(123_456e12) == "123,456 TB"
    assert format_bytes_per_s(1.25e9) == "10 Gbps"


@pytest.mark.parametrize("text", ["10Gbps", "50Gbps", "1.5Mbps", "3Tbps"])
def test_what_is_formatted_parses_again(text: str) -> None:
    bytes_per_s = parse_bytes_per_s(text)
    assert parse_bytes_per_s(format_bytes_per_s(bytes_per_s)) == pytest.approx(bytes_per_s)
