"""Stores and samplers that are killed at random moments; `benchmarks/kills.py` has more of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("torch_geometric")
pytest.importorskip("pyarrow")

from tests.support.kill_trials import PROMISED_S, run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("seeds", "promised_s"),
    [
        pytest.param((0, 1), float("inf"), id="two of any speed"),
        pytest.param(range(5), PROMISED_S, marks=pytest.mark.campaign, id="five in time"),
    ],
)
def test_every_death_is_named_and_nothing_is_left(seeds: Sequence[int], promised_s: float) -> None:
    found = run(seeds, promised_s=promised_s)
    assert found["failed"] == {}
    # These seeds kill stores as well as samplers.
    assert {name.split()[0] for name in found["victims"]} == {"store", "sampler"}
