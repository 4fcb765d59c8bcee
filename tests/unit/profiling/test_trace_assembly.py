"""Records written by hand become a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role
from headrace.core.placement import Placement
from headrace.core.plan import Plan
from headrace.core.profile import BatchTraffic, Profile, StoreTraffic, TaskTime
from headrace.core.trace import ClockOffset, Mark, Trace
from headrace.observability.trace_file import load_trace, save_trace
from headrace.profiling.trace_assembly import (
    link_bytes,
    merge_records,
    read_records,
    trace_of_folder,
    write_offsets,
)
from headrace.runtime.cluster.clock_sync import clock_offset

SAMPLER = [
    ["exec", "sampler0.0", 0, 10.0, 13.0, 2.0, 0.5, 4000],
    ["flow", "store1", "sampler0.0", 0, 1_000_000, 10.5, 12.0],
    ["flow", "sampler0.0", "store1", 0, 3000, 10.5, 12.0],
    ["serve", "store1", "sampler0.0", 0, 0.25],
    ["local", "store0", "sampler0.0", 0, 555],
]
OTHER = [
    ["exec", "sampler1.0", 0, 1010.0, 1011.0, 1.0, 0.9, 6000],
    ["flow", "store0", "sampler1.0", 0, 2_000_000, 1010.0, 1010.5],
    ["serve", "store0", "sampler1.0", 0, 0.1],
]
TRAINERS = [
    ["exec", "trainer0", 0, 14.0, 16.0],
    ["ring", "trainer0", 0, 15.0, 15.9, 80_000],
]
FAR_TRAINER = [
    ["flow", "sampler1.0", "trainer1", 0, 7000, 1009.0, 1011.5],
    ["exec", "trainer1", 0, 1011.5, 1016.0],
    ["ring", "trainer1", 0, 1015.5, 1015.9, 80_000],
]


@pytest.fixture(scope="module")
def plan() -> Plan:
    cluster = Cluster(machines=tuple(
        Machine(name=f"m{i}", nic_in=1e7, nic_out=1e7, resources={"cpu": 8}) for i in range(3)
    ))  # fmt: skip
    job = Job(trainers=2, samplers_per_trainer=1, batch_size=8, model_bytes=80_000, iterations=4)
    profile = Profile(
        task_times={role: {"default": TaskTime(mean=0.01)} for role in Role},
        store_traffic=StoreTraffic(bytes_per_seed=100),
        batch_traffic=BatchTraffic(bytes_per_seed=100),
    )
    found = headrace.plan(cluster, job, profile, method="colocate")
    placed = Placement(samplers=(0, 1), trainers=(0, 2))
    placement = type(found.placement).of(placed, cluster)
    return found.model_copy(update={"placement": placement})


def text(records: list[list[Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


@pytest.fixture(scope="module")
def trace(plan: Plan) -> Trace:
    collected = [
        ("m0", text(SAMPLER) + b'["exec","sampler0.0",1,20.0'),
        ("m1", text(OTHER)),
        ("m0", text(TRAINERS)),
        ("m2", text(FAR_TRAINER)),
    ]
    return merge_records(collected, {"m0": 0.0, "m1": -1000.0, "m2": -1000.0}, plan)


def execution(trace: Trace, name: str) -> tuple[float, float]:
    (row,) = np.flatnonzero(trace.executions.task == trace.task_names.index(name))
    return float(trace.executions.start_s[row]), float(trace.executions.end_s[row])


def flow(trace: Trace, src: str, dst: str) -> tuple[float, float, float]:
    names, flows = trace.task_names, trace.flows
    (row,) = np.flatnonzero((flows.src == names.index(src)) & (flows.dst == names.index(dst)))
    return float(flows.num_bytes[row]), float(flows.start_s[row]), float(flows.end_s[row])


def test_time_begins_with_the_first_that_happened(trace: Trace) -> None:
    # The earliest is the second sampler's store, at 10 of the first machine's clock.
    assert trace.executions.start_s.min() == 0
    assert execution(trace, "store0") == pytest.approx((0.0, 0.1))
    assert execution(trace, "store1") == pytest.approx((0.5, 0.75))


def test_what_stores_and_network_took_is_not_the_samplers(trace: Trace) -> None:
    # Of 2 s it computed 0.5 s.
    start_s, end_s = execution(trace, "sampler0.0")
    assert (end_s, end_s - start_s) == pytest.approx((3.0, 0.5))
    start_s, end_s = execution(trace, "sampler1.0")
    assert (end_s, end_s - start_s) == pytest.approx((1.0, 0.9))


def test_flows_are_between_machines_only(plan: Plan, trace: Trace) -> None:
    machines = trace.task_machines
    assert (machines[trace.flows.src] != machines[trace.flows.dst]).all()
    assert flow(trace, "store1", "sampler0.0") == pytest.approx((1e6, 0.5, 2.0))
    assert flow(trace, "sampler0.0", "store1") == pytest.approx((3000, 0.5, 2.0))
    # The trainer asked early; the part was ready at 1.0.
    assert flow(trace, "sampler1.0", "trainer1") == pytest.approx((7000, 1.0, 1.5))
    assert trace.local is not None
    kept = {
        (trace.task_names[src], trace.task_names[dst]): num_bytes
        for src, dst, num_bytes in zip(
            trace.local.src, trace.local.dst, trace.local.num_bytes, strict=True
        )
    }
    assert kept == {("store0", "sampler0.0"): 555, ("sampler0.0", "trainer0"): 4000}


def test_the_ring_runs_when_the_last_trainer_is_there(trace: Trace) -> None:
    assert execution(trace, "trainer0") == pytest.approx((4.0, 5.1))
    assert execution(trace, "trainer1") == pytest.approx((1.5, 5.6))
    assert execution(trace, "barrier") == pytest.approx((5.5, 5.5))
    # Two steps in 0.4 s; half of the gradients take about 4 ms of each.
    start_s, end_s = execution(trace, "ring0.1")
    assert start_s == pytest.approx(5.7)
    assert end_s == pytest.approx(5.896, abs=1e-3)
    num_bytes, _, end_s = flow(trace, "ring0.1", "trainer1")
    assert (num_bytes, end_s) == pytest.approx((40_000, 5.9), rel=0.03)


def test_bytes_per_link(trace: Trace) -> None:
    ring = 2 * (40_000 * 1.001 + 800)
    assert link_bytes(trace) == {
        "m0": pytest.approx((1e6 + ring, 2e6 + 3000 + ring)),
        "m1": pytest.approx((2e6 + 3000, 1e6 + 7000)),
        "m2": pytest.approx((7000 + ring, ring)),
    }


def test_lines_that_are_not_whole_are_left_out() -> None:
    data = b'["exec","trainer0",0,1,2]\n["exec","tr\n[]\n{}\n["what",1]\n["exec","t",1,2]\n\xff\n'
    assert read_records(data.splitlines()) == [["exec", "trainer0", 0, 1, 2]]


def test_nothing_recorded_is_an_empty_trace(plan: Plan) -> None:
    trace = merge_records([], {}, plan)
    assert len(trace.executions.task) == len(trace.flows.src) == 0
    assert link_bytes(trace)["m0"] == (0.0, 0.0)


def test_a_folder_is_merged_and_saved(plan: Plan, trace: Trace, tmp_path: Path) -> None:
    for task, records in (
        ("sampler0.0", SAMPLER),
        ("sampler1.0", OTHER),
        ("trainer0", TRAINERS),
        ("trainer1", FAR_TRAINER),
        ("stranger", TRAINERS),
    ):
        (tmp_path / f"trace-{task}.jsonl").write_bytes(text(records))
    far = ClockOffset(-1000.0, 0.001)
    write_offsets(tmp_path, {"m0": ClockOffset(0.0, 0.001), "m1": far, "m2": far})
    merged = trace_of_folder(tmp_path, plan)
    save_trace(merged, tmp_path / "trace.npz")
    read = load_trace(tmp_path / "trace.npz")
    for found in (merged, read):
        assert found.task_names == trace.task_names
        for table in ("executions", "flows", "local"):
            for name, column in vars(getattr(trace, table)).items():
                assert np.array_equal(getattr(getattr(found, table), name), column)
    assert read.nic_use is None


def test_the_fastest_answer_says_how_far_a_clock_is() -> None:
    times = iter([0.0, 0.5, 1.0, 1.1, 2.0, 2.9])
    answers = iter([50.4, 51.06, 52.1])
    found = clock_offset(lambda: next(answers), lambda: next(times), num_pings=3)
    assert found.offset_s == pytest.approx(1.05 - 51.06)
    assert found.uncertainty_s == pytest.approx(0.05)


def test_the_decision_before_a_trace_is_at_its_begin(plan: Plan) -> None:
    marks = [Mark(9.0, "earlier"), Mark(9.5, "another plan"), Mark(11.5, "again")]
    found = merge_records([("m0", text(SAMPLER))], {}, plan, marks).marks
    # The first that happened is a request at 10.5.
    assert found == (Mark(0.0, "another plan"), Mark(1.0, "again"))
    assert merge_records([("m0", text(SAMPLER))], {}, plan, marks[2:]).marks == found[1:]
