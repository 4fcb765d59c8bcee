"""Names of metrics."""

from __future__ import annotations

import re

from headrace.observability.metrics import METRICS, RUN_LABELS

# https://prometheus.io/docs/concepts/data_model/ and /docs/practices/naming/
NAME = re.compile(r"headrace_[a-z]+(_[a-z]+)*")


def test_names_follow_prometheus() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert NAME.fullmatch(metric.name)
        assert metric.exported == f"ray_{metric.name}"
        labels = (*RUN_LABELS, *metric.labels)
        assert len(set(labels)) == len(labels)
        assert metric.text
