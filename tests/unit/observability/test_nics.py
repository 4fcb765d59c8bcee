from __future__ import annotations

import numpy as np
import pytest

from headrace.observability import NicSummary, nic_summary


def summary(received: list[float], sent: list[float], makespan_s: float = 2.0) -> NicSummary:
    gbps10, gbps50 = 1.25e9, 6.25e9
    return nic_summary(
        ("m0", "big box"),
        np.array(received),
        np.array(sent),
        np.array([gbps10, gbps50]),
        np.array([gbps10, gbps50]),
        makespan_s,
    )


def test_utilisation_is_bytes_over_what_could_have_been_carried() -> None:
    found = summary([1.25e9, 2.5e9], [0.0, 6.25e9])
    assert found.in_utilisation.tolist() == [0.5, 0.2]
    assert found.out_utilisation.tolist() == [0.0, 0.5]


@pytest.mark.parametrize(
    ("received", "sent", "busiest", "sentence"),
    [
        (
            [2.45e9, 0.0],
            [0.0, 1e9],
            "m0 in",
            "The network is the bottleneck: m0 receives at 98% of its 10 Gbps.",
        ),
        (
            [0.0, 1e9],
            [1e8, 12.5e9],
            "big box out",
            "The network is the bottleneck: big box sends at 100% of its 50 Gbps.",
        ),
        (
            [1e9, 0.0],
            [0.0, 1e9],
            "m0 in",
            "No NIC is saturated (the busiest: m0 receives at 40% of its 10 Gbps): "
            "task times and waits are the bottleneck.",
        ),
        ([0.0, 0.0], [0.0, 0.0], "", "There is no network traffic: task times are the bottleneck."),
    ],
)
def test_one_sentence_names_the_bottleneck(
    received: list[float], sent: list[float], busiest: str, sentence: str
) -> None:
    found = summary(received, sent)
    assert (found.busiest, found.sentence()) == (busiest, sentence)


def test_no_time_at_all_is_no_use_at_all() -> None:
    assert summary([0.0, 0.0], [0.0, 0.0], makespan_s=0.0).busiest == ""
