"""Stores and samplers that are killed at random moments: five trials of the campaign."""

from __future__ import annotations

import pytest

pytest.importorskip("torch_geometric")
pytest.importorskip("pyarrow")

from benchmarks.kills import PROMISED_S, run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]


def test_every_death_is_named_soon_and_nothing_is_left() -> None:
    found = run(5)
    assert found["failed"] == {}
    assert found["slowest_s"] < PROMISED_S
    # These seeds kill stores as well as samplers.
    assert {name.split()[0] for name in found["victims"]} == {"store", "sampler"}
