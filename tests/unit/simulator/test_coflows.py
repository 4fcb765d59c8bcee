"""Graphs of coflows: by hand, beside the naive simulator, and all-to-alls at their lower bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.coflows import CoflowGraph
from headrace.policies.flow import FLOW_POLICIES
from headrace.simulator import build_coflow_instance, simulate
from tests.oracle.coflows import lower_bound_s, random_all_to_all, random_graph
from tests.oracle.comparison import differences

seeds = st.integers(0, 2**31)


def makespan_s(graph: CoflowGraph, policy: str) -> float:
    return simulate(build_coflow_instance(graph)[0], policy, general=True).makespan_s


@pytest.mark.parametrize("equal_nics", [True, False])
def test_matching_ends_all_to_alls_at_the_lower_bound(equal_nics: bool) -> None:
    for seed in range(60):
        graph = random_all_to_all(seed, equal_nics=equal_nics)
        found_s, bound_s = makespan_s(graph, "matching"), lower_bound_s(graph)
        assert found_s == pytest.approx(bound_s, rel=1e-9), seed
        assert found_s <= makespan_s(graph, "maxmin") * (1 + 1e-9), seed


def test_maxmin_misses_the_lower_bound_by_hand() -> None:
    # m0, m1 and m2 are tight: 3 bytes at 1 byte/s. Under max-min, m2 receives a third from each, m1
    # half from each, so m0 sends 5/6. At 2 s m1 has its byte from m3, and m0 sends 2/3 and 1/3; at
    # 3 s it still has 1/3 of a byte.
    sizes = [(0, 1, 2), (0, 2, 1), (3, 1, 1), (4, 2, 1), (5, 2, 1)]
    flows = [{"src": f"s{a}", "dst": f"r{b}", "bytes": n} for a, b, n in sizes]
    graph = CoflowGraph.model_validate(
        {
            "machines": [{"name": "m", "count": 6, "nic": 1.0}],
            "types": ["expert"],
            "tasks": [{"name": f"{w}{m}", "machine": f"m-{m}"} for m in range(6) for w in "sr"],
            "coflows": [{"name": "c", "type": "expert", "flows": flows}],
        }
    )
    assert makespan_s(graph, "maxmin") == pytest.approx(10 / 3)
    assert makespan_s(graph, "matching") == pytest.approx(3)


def test_three_factors_order_coflows_by_hand() -> None:
    # All four flows share the sender's port; each takes 1 s, in the order of their ranks.
    factors = [("data", 0, 0), ("expert", 1, 0), ("expert", 0, 1), ("expert", 0, 0)]
    graph = CoflowGraph.model_validate(
        {
            "machines": [{"name": "m", "count": 2, "nic": 8.0}],
            "types": ["expert", "data"],
            "tasks": [
                {"name": "send", "machine": "m-0", "time": 1.0},
                *({"name": f"r{i}", "machine": "m-1"} for i in range(4)),
            ],
            "coflows": [
                {
                    "name": f"c{i}",
                    "type": kind,
                    "bin": group,
                    "layer": layer,
                    "flows": [{"src": "send", "dst": f"r{i}", "bytes": 8}],
                }
                for i, (kind, group, layer) in enumerate(factors)
            ],
        }
    )
    assert graph.ranks == (2, 3, 1, 0)
    instance, coflow_of = build_coflow_instance(graph)
    assert coflow_of.tolist() == [0, 1, 2, 3]
    for policy in ("priority", "matching"):
        record = simulate(instance, policy, record=True).record
        assert record is not None
        assert record.flow_end_s[:, 0].tolist() == [4.0, 5.0, 3.0, 2.0]
    fair = simulate(instance, "maxmin", record=True).record
    assert fair is not None
    assert fair.flow_end_s[:, 0].tolist() == [5.0] * 4


@pytest.mark.parametrize("policy", FLOW_POLICIES)
def test_agrees_with_the_naive_simulator(policy: str) -> None:
    for seed in range(40):
        instance, _ = build_coflow_instance(random_graph(seed))
        assert not differences(instance, policy, general=True), seed
        assert not differences(instance, policy), seed


@settings(max_examples=25)
@given(seed=seeds)
def test_dependencies_and_order_hold(seed: int) -> None:
    graph = random_graph(seed)
    instance, _ = build_coflow_instance(graph)
    for policy in ("priority", "matching"):
        record = simulate(instance, policy, record=True, general=True).record
        assert record is not None
        begin, end = record.task_start_s[:, 0], record.task_end_s[:, 0]
        arrived = np.where(
            np.isnan(record.flow_end_s[:, 0]), end[instance.edge_src], record.flow_end_s[:, 0]
        )
        ready = np.zeros(len(begin))
        np.maximum.at(ready, instance.edge_dst, arrived)
        assert begin == pytest.approx(ready, rel=1e-9)
        for line in graph.order:
            tasks = [graph.task_index[name] for name in line]
            assert (begin[tasks[1:]] >= end[tasks[:-1]] * (1 - 1e-9)).all()


@settings(max_examples=25)
@given(seed=seeds)
def test_same_graph_same_record_bit_for_bit(seed: int) -> None:
    records = []
    for _ in range(2):
        instance, _ = build_coflow_instance(random_graph(seed))
        record = simulate(instance, "matching", record=True).record
        assert record is not None
        records.append(record)
    for name in ("task_start_s", "task_end_s", "flow_start_s", "flow_end_s"):
        first, second = (getattr(record, name) for record in records)
        assert first.tobytes() == second.tobytes()


@settings(max_examples=25)
@given(seed=seeds)
def test_no_nic_is_above_capacity_and_bytes_are_conserved(seed: int) -> None:
    graph = random_graph(seed)
    instance, _ = build_coflow_instance(graph)
    outcome = simulate(instance, "matching", record=True)
    assert outcome.record is not None
    use = outcome.record.nic_use
    lengths = np.diff(np.append(use.time_s, outcome.makespan_s))[:, None]
    for rate, nic, total in (
        (use.in_bytes_per_s, instance.nic_in_bytes_per_s, outcome.in_bytes),
        (use.out_bytes_per_s, instance.nic_out_bytes_per_s, outcome.out_bytes),
    ):
        assert (rate <= nic * (1 + 1e-9)).all()
        assert (lengths * rate).sum(axis=0) == pytest.approx(total, rel=1e-6, abs=1e-3)
