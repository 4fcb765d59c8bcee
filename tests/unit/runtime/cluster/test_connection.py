"""What Ray's libraries log while they look for a cluster does not reach the terminal."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest

from headrace.runtime.cluster.connection import _without_ray_lines

LINE = b"[2026-11-16 22:45:18,338 W 27151 27151] gcs_client.cc:210: Failed to get cluster ID\n"


def test_lines_of_ray_are_left_out_and_others_are_not(capfd: pytest.CaptureFixture[str]) -> None:
    with suppress(ConnectionError), _without_ray_lines():
        os.write(2, LINE)
        os.write(2, b"disk is full\n")
        raise ConnectionError
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "disk is full\nafterwards\n"
