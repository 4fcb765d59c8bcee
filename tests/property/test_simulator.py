"""What must hold in every rehearsal, whatever the job, the placement and the policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.tasks import EdgeKind
from headrace.policies.flow import FLOW_POLICIES
from headrace.simulator import Instance, Outcome, Record, simulate
from tests.oracle.instances import random_case, random_instance
from tests.oracle.naive import durations, is_flow, rehearse

policies = pytest.mark.parametrize("policy", FLOW_POLICIES)
seeds = st.integers(0, 2**31)
examples = settings(max_examples=30)

SLACK = 1e-11
"""Relative to the makespan; completions within 1e-12 may count as one instant."""


def recorded(instance: Instance, policy: str) -> tuple[Outcome, Record]:
    outcome = simulate(instance, policy, record=True)
    assert outcome.record is not None
    return outcome, outcome.record


def flow_edges(instance: Instance) -> np.ndarray:
    return np.array([is_flow(instance, e) for e in range(instance.num_edges)])


def per_machine(machines: np.ndarray, values: np.ndarray, num_machines: int) -> np.ndarray:
    return np.bincount(machines, weights=values, minlength=num_machines)


@policies
@examples
@given(seed=seeds)
def test_bytes_are_conserved(policy: str, seed: int) -> None:
    instance = random_instance(seed)
    outcome, record = recorded(instance, policy)
    src = instance.task_machine[instance.edge_src]
    dst = instance.task_machine[instance.edge_dst]
    flows = flow_edges(instance)[:, None]
    complete = flows & ~np.isnan(record.flow_end_s)
    unfinished = flows & ~np.isnan(record.flow_start_s) & np.isnan(record.flow_end_s)
    edge_times = np.append(record.nic_use.time_s, outcome.makespan_s)
    assert (np.diff(edge_times) >= 0).all()
    for machine, total, rate in (
        (dst, outcome.in_bytes, record.nic_use.in_bytes_per_s),
        (src, outcome.out_bytes, record.nic_use.out_bytes_per_s),
    ):
        delivered = np.where(complete, record.flow_bytes, 0.0).sum(axis=1)
        wanted = per_machine(machine, delivered, instance.num_machines)
        assert np.allclose(total, wanted, rtol=1e-9, atol=0)
        # What went through a NIC is what arrived, and at most all of what was still on its way.
        through = (np.diff(edge_times)[:, None] * rate).sum(axis=0)
        on_its_way = np.where(unfinished, record.flow_bytes, 0.0).sum(axis=1)
        most = wanted + per_machine(machine, on_its_way, instance.num_machines)
        tolerance = 1e-6 * most.max(initial=1.0)
        assert (through >= wanted - tolerance).all()
        assert (through <= most + tolerance).all()


@policies
@settings(max_examples=10)
@given(seed=seeds)
def test_nic_use_is_what_the_naive_twin_sends(policy: str, seed: int) -> None:
    instance = random_instance(seed)
    outcome, record = recorded(instance, policy)
    sent, received = np.zeros(instance.num_machines), np.zeros(instance.num_machines)
    for segment in rehearse(instance, policy).segments:
        num_bytes = segment.bytes_per_s * (segment.end_s - segment.start_s)
        sent[instance.task_machine[instance.edge_src[segment.edge]]] += num_bytes
        received[instance.task_machine[instance.edge_dst[segment.edge]]] += num_bytes
    lengths = np.diff(np.append(record.nic_use.time_s, outcome.makespan_s))[:, None]
    assert np.allclose((lengths * record.nic_use.out_bytes_per_s).sum(axis=0), sent, rtol=1e-6)
    assert np.allclose((lengths * record.nic_use.in_bytes_per_s).sum(axis=0), received, rtol=1e-6)


@policies
@examples
@given(seed=seeds)
def test_no_nic_is_above_capacity_at_any_time(policy: str, seed: int) -> None:
    instance = random_instance(seed)
    _, record = recorded(instance, policy)
    use = record.nic_use
    assert (use.in_bytes_per_s >= 0).all()
    assert (use.out_bytes_per_s >= 0).all()
    assert (use.in_bytes_per_s <= instance.nic_in_bytes_per_s * (1 + 1e-9)).all()
    assert (use.out_bytes_per_s <= instance.nic_out_bytes_per_s * (1 + 1e-9)).all()


@policies
@examples
@given(seed=seeds)
def test_no_flow_is_faster_than_its_ports(policy: str, seed: int) -> None:
    instance = random_instance(seed)
    outcome, record = recorded(instance, policy)
    nic_out = instance.nic_out_bytes_per_s[instance.task_machine[instance.edge_src]]
    nic_in = instance.nic_in_bytes_per_s[instance.task_machine[instance.edge_dst]]
    least_s = record.flow_bytes / np.minimum(nic_out, nic_in)[:, None]
    complete = ~np.isnan(record.flow_end_s)
    took_s = (record.flow_end_s - record.flow_start_s)[complete]
    assert (took_s >= least_s[complete] - 1e-9 * outcome.makespan_s).all()


def earliest_starts(instance: Instance, record: Record) -> tuple[np.ndarray, np.ndarray]:
    """When eqs 6-12 and the window let every task and flow start; -inf where a flow never did."""
    task = np.zeros((instance.num_tasks, instance.num_iterations))  # eq. 6
    flow = np.full((instance.num_edges, instance.num_iterations), -np.inf)
    task[:, 1:] = record.task_end_s[:, :-1]  # eq. 11
    for e in range(instance.num_edges):
        src, dst, lag = instance.edge_src[e], instance.edge_dst[e], int(instance.edge_lag[e])
        if is_flow(instance, e):
            flow[e] = record.task_end_s[src]  # eq. 8
            flow[e, 1:] = np.maximum(
                flow[e, 1:], np.nan_to_num(record.flow_end_s[e, :-1], nan=np.inf)
            )
            ready = record.flow_end_s[e]  # eq. 9; eq. 12 is the line above
        else:
            ready = record.task_end_s[src]  # eq. 10
        last = instance.num_iterations - lag
        needed = np.nan_to_num(ready[:last], nan=np.inf)
        task[dst, lag:] = np.maximum(task[dst, lag:], needed)
        if instance.window:
            k = min(instance.window, instance.num_iterations)
            held = record.task_end_s[dst, : instance.num_iterations - k]
            task[src, k:] = np.maximum(task[src, k:], held)
    return task, flow


@policies
@examples
@given(seed=seeds)
def test_everything_starts_when_its_dependencies_allow_and_not_before(
    policy: str, seed: int
) -> None:
    instance = random_instance(seed)
    outcome, record = recorded(instance, policy)
    slack_s = SLACK * outcome.makespan_s
    task_s, flow_s = earliest_starts(instance, record)
    assert not np.isnan(record.task_start_s).any()  # eq. 7
    assert np.abs(record.task_start_s - task_s).max() <= slack_s
    started = ~np.isnan(record.flow_start_s)
    assert (started <= flow_edges(instance)[:, None]).all()
    assert np.abs(record.flow_start_s - flow_s)[started].max(initial=0.0) <= slack_s
    # A flow that never started waits for a predecessor that never ended.
    waiting = flow_edges(instance)[:, None] & ~started
    assert np.isinf(flow_s[waiting]).all()


@policies
@examples
@given(seed=seeds)
def test_tasks_take_the_time_that_was_drawn(policy: str, seed: int) -> None:
    instance = random_instance(seed)
    outcome, record = recorded(instance, policy)
    took_s = record.task_end_s - record.task_start_s
    assert np.allclose(took_s, durations(instance), rtol=1e-9, atol=SLACK * outcome.makespan_s)
    assert outcome.makespan_s == record.task_end_s.max()
    assert np.array_equal(outcome.iteration_end_s, record.task_end_s.max(axis=0))


@policies
@examples
@given(seed=seeds)
def test_events_are_completions(policy: str, seed: int) -> None:
    instance = random_instance(seed)
    outcome, record = recorded(instance, policy)
    num_flows = int((~np.isnan(record.flow_end_s) & (record.flow_bytes > 0)).sum())
    assert outcome.num_events == record.task_end_s.size + num_flows


def arrays_of(outcome: Outcome) -> list[bytes]:
    record = outcome.record
    assert record is not None
    use = record.nic_use
    arrays = [outcome.iteration_end_s, outcome.in_bytes, outcome.out_bytes]
    arrays += [record.task_start_s, record.task_end_s, record.flow_start_s, record.flow_end_s]
    arrays += [record.flow_bytes, use.time_s, use.in_bytes_per_s, use.out_bytes_per_s]
    return [array.tobytes() for array in arrays]


@policies
@examples
@given(seed=seeds)
def test_same_seed_same_record_bit_for_bit(policy: str, seed: int) -> None:
    first = simulate(random_instance(seed), policy, record=True)
    second = simulate(random_instance(seed), policy, record=True)
    assert arrays_of(first) == arrays_of(second)
    assert (first.makespan_s, first.num_events) == (second.makespan_s, second.num_events)


@examples
@given(seed=seeds)
def test_another_seed_draws_other_volumes(seed: int) -> None:
    instance = random_case(seed, varied=True).instance
    other = replace(instance, seed=instance.seed + 1)
    drawn, redrawn = (recorded(one, "maxmin")[1].flow_bytes for one in (instance, other))
    # Graph data always varies here; a table of few factors may repeat one, hardly all of them.
    varying = (instance.edge_kind == EdgeKind.GRAPH) & (instance.edge_bytes > 0)
    if varying.sum() * instance.num_iterations >= 16:
        assert not np.array_equal(drawn[varying], redrawn[varying])
    constant = instance.edge_table == 0
    assert np.array_equal(drawn[constant], redrawn[constant])


@policies
@examples
@given(seed=seeds)
def test_twice_the_bytes_on_twice_the_network_changes_no_time(policy: str, seed: int) -> None:
    instance = random_instance(seed)
    doubled = replace(
        instance,
        edge_bytes=instance.edge_bytes * 2,
        nic_out_bytes_per_s=instance.nic_out_bytes_per_s * 2,
        nic_in_bytes_per_s=instance.nic_in_bytes_per_s * 2,
    )
    # A factor of two is exact in binary, so even rounding is the same.
    assert simulate(doubled, policy).makespan_s == simulate(instance, policy).makespan_s


@policies
@examples
@given(seed=seeds)
def test_all_times_doubled_doubles_the_makespan(policy: str, seed: int) -> None:
    instance = random_instance(seed)
    slower = replace(
        instance,
        task_time_s=instance.task_time_s * 2,
        edge_bytes=instance.edge_bytes * 2,
        pace_s=instance.pace_s * 2,
    )
    assert simulate(slower, policy).makespan_s == pytest.approx(
        2 * simulate(instance, policy).makespan_s, rel=1e-12
    )
