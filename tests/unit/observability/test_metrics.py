"""Names of metrics, and what is sent of their values."""

from __future__ import annotations

import re

from headrace.observability.metrics import EPOCH, ITERATIONS, METRICS, RUN_LABELS, Growth, Kind

# https://prometheus.io/docs/concepts/data_model/ and /docs/practices/naming/
NAME = re.compile(r"headrace_[a-z]+(_[a-z]+)*")


def test_names_follow_prometheus() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert NAME.fullmatch(metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert metric.exported == f"ray_{metric.name}"
        labels = (*RUN_LABELS, *metric.labels)
        assert len(set(labels)) == len(labels)
        assert metric.text


def test_of_a_counter_its_growth_is_sent() -> None:
    growth = Growth()
    assert growth.of({(ITERATIONS, ()): 0}) == []
    assert growth.of({(ITERATIONS, ()): 5, (EPOCH, ()): 1}) == [
        (ITERATIONS, (), 5),
        (EPOCH, (), 1),
    ]
    assert growth.of({(ITERATIONS, ()): 7, (EPOCH, ()): 1}) == [
        (ITERATIONS, (), 2),
        (EPOCH, (), 1),
    ]


def test_a_counter_that_falls_waits_until_it_is_above_again() -> None:
    growth = Growth()
    growth.of({(ITERATIONS, ()): 40})
    assert growth.of({(ITERATIONS, ()): 30}) == []
    assert growth.of({(ITERATIONS, ()): 42}) == [(ITERATIONS, (), 2)]
