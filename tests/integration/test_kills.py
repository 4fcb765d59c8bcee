"""Stores and samplers that are killed at random moments; `benchmarks/kills.py` has more of them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch_geometric")
pytest.importorskip("pyarrow")

from tests.support.kill_trials import PROMISED_S, run

pytestmark = [pytest.mark.integration, pytest.mark.campaign, pytest.mark.timeout(1800)]


def test_every_death_is_named_in_time_and_nothing_is_left() -> None:
    found = run(range(5), promised_s=PROMISED_S)
    assert found["failed"] == {}
    # These seeds kill stores as well as samplers.
    assert {name.split()[0] for name in found["victims"]} == {"store", "sampler"}
