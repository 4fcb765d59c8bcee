from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headrace
from examples.coflows import make
from headrace.api.coflows import simulate_coflows
from headrace.core.errors import SpecError
from tests.oracle.coflows import random_all_to_all

EXAMPLE = Path(make.__file__).parent / "coflows.yaml"


def test_example_is_what_its_program_writes() -> None:
    assert EXAMPLE.read_text() == make.text("50Gbps")


def test_three_factors_beat_fair_sharing_in_the_example() -> None:
    graph = headrace.load_coflows(EXAMPLE)
    fair_s = simulate_coflows(graph, "maxmin").makespan_s
    assert simulate_coflows(graph, "priority").makespan_s < 0.95 * fair_s
    assert simulate_coflows(graph, "matching").makespan_s < 0.94 * fair_s


def test_result_names_tasks_and_coflows() -> None:
    graph = random_all_to_all(3)
    found = simulate_coflows(graph, "matching")
    (coflow,) = graph.coflows
    assert found.coflows[coflow.name].start_s == 0
    assert found.coflows[coflow.name].duration_s == found.makespan_s
    assert max(span.end_s for span in found.tasks.values()) == found.makespan_s
    sent = sum(flow.bytes for flow in coflow.flows)
    assert found.in_bytes.sum() == pytest.approx(sent)
    assert found.out_bytes.sum() == pytest.approx(sent)
    assert found.summary()["bottleneck"]["nic"] == found.bottleneck
    assert np.isclose(found.nics.busiest_utilisation, 1)


def test_flows_within_a_machine_take_no_time() -> None:
    graph = headrace.CoflowGraph.model_validate(
        {
            "machines": [{"name": "m", "nic": "1Gbps"}],
            "types": ["data"],
            "tasks": [
                {"name": "a", "machine": "m", "time": "2s"},
                {"name": "b", "machine": "m", "time": "1s"},
            ],
            "coflows": [
                {"name": "c", "type": "data", "flows": [{"src": "a", "dst": "b", "bytes": "1TB"}]}
            ],
        }
    )
    found = simulate_coflows(graph)
    assert found.makespan_s == 3
    assert (found.coflows["c"].start_s, found.coflows["c"].end_s) == (2, 2)
    assert found.bottleneck == ""


def test_tasks_without_flows() -> None:
    graph = headrace.CoflowGraph.model_validate(
        {
            "machines": [{"name": "m", "nic": "1Gbps"}],
            "tasks": [
                {"name": "a", "machine": "m", "time": 2},
                {"name": "b", "machine": "m", "time": 1},
            ],
            "order": [["b", "a"]],
        }
    )
    found = simulate_coflows(graph)
    assert found.makespan_s == 3
    assert found.tasks["a"].start_s == 1


def test_unknown_policy() -> None:
    with pytest.raises(SpecError, match="did you mean matching"):
        simulate_coflows(random_all_to_all(0), "matchings")
