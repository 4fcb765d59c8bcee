from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.core.job import Sync
from headrace.core.trace import Mark, Trace
from headrace.observability import write_perfetto
from headrace.observability.lanes import FLOW_KINDS
from tests.unit.observability.traces import random_trace, tiny_trace

Event = dict[str, Any]


def written(trace: Trace, folder: Path) -> list[Event]:
    path = folder / "trace.json"
    write_perfetto(trace, path)
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    return events


def of_phase(events: list[Event], phase: str) -> list[Event]:
    return [event for event in events if event["ph"] == phase]


def test_the_head_names_generator_and_version(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_perfetto(tiny_trace(), path)
    head = json.loads(path.read_text())
    assert head["otherData"]["generator"].startswith("headrace")
    assert head["otherData"]["trace_version"] == 1
    assert head["displayTimeUnit"] == "ms"


def test_decisions_are_instants_of_the_whole_trace(tmp_path: Path) -> None:
    trace = replace(tiny_trace(), marks=(Mark(0.25, 'm1 is "lost"'),))
    (instant,) = of_phase(written(trace, tmp_path), "i")
    assert (instant["name"], instant["s"], instant["ts"]) == ('m1 is "lost"', "g", 250_000)


def test_machines_are_processes_and_tasks_threads(tmp_path: Path) -> None:
    names = [
        (event["pid"], event["args"]["name"])
        for event in of_phase(written(tiny_trace(), tmp_path), "M")
        if event["name"].endswith("_name")
    ]
    assert names == [
        (1, "m0 (10 Gbps)"),
        (2, "m1 (10 Gbps in, 50 Gbps out)"),
        (1, "store0"),
        (1, "ps0"),
        (2, "store1"),
        (2, "sampler0.0"),
        (2, "trainer0"),
    ]


def test_an_execution_is_a_slice_in_microseconds(tmp_path: Path) -> None:
    slices = of_phase(written(tiny_trace(), tmp_path), "X")
    assert len(slices) == 8
    trainer = next(event for event in slices if event["name"] == "#0 trainer0")
    assert (trainer["ts"], trainer["dur"], trainer["cat"]) == (40000.0, 20000.0, "trainer")
    assert trainer["pid"] == 2


def test_a_flow_is_an_asynchronous_slice_where_it_arrives(tmp_path: Path) -> None:
    events = written(tiny_trace(), tmp_path)
    begin = next(e for e in events if e["ph"] == "b" and e["name"] == "#1 store0 → sampler0.0")
    assert (begin["pid"], begin["cat"], begin["ts"]) == (2, "graph", 30000.0)
    assert begin["args"] == {"iteration": 1, "bytes": 25000000, "from": "m0", "to": "m1"}
    end = next(e for e in events if e["ph"] == "e" and e["name"] == begin["name"])
    assert (end["id2"], end["ts"]) == (begin["id2"], 50000.0)


def test_every_lane_of_flows_starts_with_its_name(tmp_path: Path) -> None:
    seen: dict[tuple[int, str], str] = {}
    for event in written(random_trace(4, 5, Sync.PS), tmp_path):
        if event["ph"] == "b":
            seen.setdefault((event["pid"], event["id2"]["local"]), event["name"])
    assert seen
    for (_, lane), name in seen.items():
        kind = lane.rstrip("0123456789")
        assert kind in FLOW_KINDS
        assert name == f"{kind} in"


def test_counters_change_only_when_the_throughput_does(tmp_path: Path) -> None:
    counters = of_phase(written(tiny_trace(), tmp_path), "C")
    of_m0_out = [
        (event["ts"], event["args"]["Gbps"])
        for event in counters
        if event["pid"] == 1 and event["name"] == "NIC out"
    ]
    assert of_m0_out == [(0, 0), (10000, 10), (50000, 0), (61000, 8)]
    assert not of_phase(written(replace(tiny_trace(), nic_use=None), tmp_path), "C")


@pytest.mark.parametrize("sync", list(Sync))
@pytest.mark.parametrize("num_machines", [1, 5])
def test_nothing_overlaps_on_one_track(num_machines: int, sync: Sync, tmp_path: Path) -> None:
    trace = random_trace(num_machines, 6, sync)
    events = written(trace, tmp_path)
    threads: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in of_phase(events, "X"):
        threads[event["pid"], event["tid"]].append(event)
    for mine in threads.values():
        mine.sort(key=lambda event: event["ts"])
        for before, after in pairwise(mine):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    open_flows: dict[tuple[int, str], str | None] = {}
    asynchronous = [event for event in events if event["ph"] in "be"]
    for event in sorted(asynchronous, key=lambda event: float(event["ts"])):
        track = (event["pid"], event["id2"]["local"])
        if event["ph"] == "b":
            assert open_flows.get(track) is None
            open_flows[track] = event["name"]
        else:
            assert open_flows[track] == event["name"]
            open_flows[track] = None
    num_lanes = len({(event["pid"], event["id2"]["local"]) for event in asynchronous})
    assert len(asynchronous) == 2 * (num_lanes + len(trace.flows.src))


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_equal_traces_give_equal_bytes(name: str, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_perfetto(random_trace(3, 3, Sync.PS), tmp_path / folder / name)
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_name_that_ends_in_gz_is_compressed(tmp_path: Path) -> None:
    plain, packed = tmp_path / "trace.json", tmp_path / "trace.json.gz"
    write_perfetto(tiny_trace(), plain)
    write_perfetto(tiny_trace(), packed)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


def test_names_are_escaped(tmp_path: Path) -> None:
    trace = replace(tiny_trace(), machine_names=('the "big" one', "m1"))
    names = [e["args"]["name"] for e in written(trace, tmp_path) if e["name"] == "process_name"]
    assert names[0] == 'the "big" one (10 Gbps)'
