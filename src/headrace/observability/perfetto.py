"""Trace files for the Perfetto UI (ui.perfetto.dev) and `chrome://tracing`.

A machine is a process and a task is a thread. Flows are asynchronous slices of the receiving
machine. NIC throughput is two counters per machine. Rows are streamed, so memory use is constant.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from io import BufferedIOBase
from itertools import pairwise
from pathlib import Path

import numpy as np

from headrace.core.trace import TRACE_VERSION, NicUse, Trace
from headrace.core.units import format_bytes_per_s
from headrace.observability.lanes import FLOW_KINDS, flow_ends, flow_kinds, stack, task_lanes

_CHUNK_ROWS = 65536
"""Rows converted to Python numbers at a time; bounds memory to a few MB."""


def write_perfetto(trace: Trace, path: Path) -> None:
    """Write a trace in the JSON trace event format; compressed if the path ends with `.gz`."""
    with ExitStack() as files:
        out: BufferedIOBase = files.enter_context(path.open("wb"))
        if path.suffix == ".gz":
            # No name and time in the gzip header, so that equal traces give equal bytes.
            out = files.enter_context(gzip.GzipFile("", "wb", 6, out, mtime=0))
        head = {"generator": _generator(), "trace_version": TRACE_VERSION}
        out.write(f'{{"displayTimeUnit":"ms","otherData":{_json(head)},"traceEvents":[\n'.encode())
        separator = ""
        for rows in _batches(_events(trace)):
            out.write((separator + ",\n".join(rows)).encode())
            separator = ",\n"
        out.write(b"\n]}\n")


def _generator() -> str:
    try:
        return f"headrace {version('headrace')}"
    except PackageNotFoundError:
        return "headrace"


def _batches(events: Iterator[str]) -> Iterator[list[str]]:
    rows: list[str] = []
    for event in events:
        rows.append(event)
        if len(rows) == _CHUNK_ROWS:
            yield rows
            rows = []
    if rows:
        yield rows


def _events(trace: Trace) -> Iterator[str]:
    yield from _machines(trace)
    yield from _executions(trace)
    yield from _flows(trace)
    if trace.nic_use is not None:
        yield from _throughput(trace.nic_use)
    for mark in trace.marks:
        # A global instant event: a line across all machines.
        yield (
            f'{{"ph":"i","s":"g","pid":1,"tid":0,"cat":"decision","name":{_json(mark.text)},'
            f'"ts":{_microseconds(mark.at_s):.3f}}}'
        )


def _machines(trace: Trace) -> Iterator[str]:
    for machine, name in enumerate(trace.machine_names):
        into, out_of = trace.nic_in_bytes_per_s[machine], trace.nic_out_bytes_per_s[machine]
        speed = format_bytes_per_s(into)
        if into != out_of:
            speed = f"{speed} in, {format_bytes_per_s(out_of)} out"
        yield _label("process_name", machine, 0, "name", f"{name} ({speed})")
        yield _label("process_sort_index", machine, 0, "sort_index", machine)


def _executions(trace: Trace) -> Iterator[str]:
    lanes, names = task_lanes(trace)
    machine_of_lane = np.zeros(len(names), dtype=np.int64)
    machine_of_lane[lanes] = trace.task_machines
    for lane, name in enumerate(names):
        machine, thread = int(machine_of_lane[lane]), _thread(trace, lane)
        yield _label("thread_name", machine, thread, "name", name)
        yield _label("thread_sort_index", machine, thread, "sort_index", lane)
    heads = [
        f'"pid":{machine + 1},"tid":{_thread(trace, lane)},"cat":"{role}"'
        for machine, lane, role in zip(
            trace.task_machines.tolist(), lanes.tolist(), trace.task_roles, strict=True
        )
    ]
    rows = trace.executions
    for part in _slices(len(rows.task)):
        columns = (rows.task, rows.iteration, rows.start_s, rows.end_s)
        for task, iteration, start_s, end_s in zip(
            *(column[part].tolist() for column in columns), strict=True
        ):
            # The iteration comes first so that it is legible in narrow slices.
            name = _json(f"#{iteration} {trace.task_names[task]}")
            start, end = _microseconds(start_s), _microseconds(end_s)
            yield (
                f'{{"ph":"X",{heads[task]},"name":{name},"ts":{start:.3f},"dur":{end - start:.3f},'
                f'"args":{{"iteration":{iteration}}}}}'
            )


def _flows(trace: Trace) -> Iterator[str]:
    flows, kinds, ends_s = trace.flows, flow_kinds(trace), flow_ends(trace)
    receivers = trace.task_machines[flows.dst]
    order = np.lexsort((flows.start_s, kinds, receivers))
    group = receivers[order] * len(FLOW_KINDS) + kinds[order]
    bounds = np.flatnonzero(np.diff(group, prepend=-1, append=-1))
    for first, last in pairwise(bounds.tolist()):
        rows = order[first:last]
        machine, kind = int(receivers[rows[0]]), FLOW_KINDS[kinds[rows[0]]]
        lanes = stack(flows.start_s[rows], ends_s[rows])
        yield from _track_names(machine, kind, int(lanes.max()) + 1)
        for part in _slices(len(rows)):
            here = rows[part]
            columns = (flows.src, flows.dst, flows.iteration, flows.num_bytes, flows.start_s)
            for lane, src, dst, iteration, num_bytes, start_s, end_s in zip(
                lanes[part].tolist(),
                *(column[here].tolist() for column in columns),
                ends_s[here].tolist(),
                strict=True,
            ):
                sender = int(trace.task_machines[src])
                flow = f"#{iteration} {trace.task_names[src]} → {trace.task_names[dst]}"
                arguments = {
                    "iteration": iteration,
                    "bytes": round(num_bytes),
                    "from": trace.machine_names[sender],
                    "to": trace.machine_names[machine],
                }
                head = _async(machine, kind, lane, flow)
                yield (
                    f'{{"ph":"b",{head},"ts":{_microseconds(start_s):.3f},'
                    f'"args":{_json(arguments)}}}'
                )
                yield f'{{"ph":"e",{head},"ts":{_microseconds(end_s):.3f}}}'


def _track_names(machine: int, kind: str, num_lanes: int) -> Iterator[str]:
    """Create empty slices that name the lanes.

    Perfetto names an asynchronous track after its first slice and groups tracks of equal name.
    Without these slices every flow would get its own track.
    """
    for phase in "be":
        for lane in range(num_lanes):
            yield f'{{"ph":"{phase}",{_async(machine, kind, lane, f"{kind} in")},"ts":0.000}}'


def _throughput(use: NicUse) -> Iterator[str]:
    for direction, rates in (("in", use.in_bytes_per_s), ("out", use.out_bytes_per_s)):
        for machine in range(rates.shape[1]):
            gbps = rates[:, machine] * 8e-9
            changed = np.flatnonzero(np.diff(gbps, prepend=np.nan) != 0)
            head = f'"pid":{machine + 1},"name":"NIC {direction}"'
            for part in _slices(len(changed)):
                rows = changed[part]
                for time_s, rate in zip(
                    use.time_s[rows].tolist(), gbps[rows].tolist(), strict=True
                ):
                    yield (
                        f'{{"ph":"C",{head},"ts":{_microseconds(time_s):.3f},'
                        f'"args":{{"Gbps":{rate:.6g}}}}}'
                    )


def _label(what: str, machine: int, thread: int, key: str, value: str | int) -> str:
    return (
        f'{{"ph":"M","pid":{machine + 1},"tid":{thread},"name":"{what}",'
        f'"args":{{"{key}":{_json(value)}}}}}'
    )


def _async(machine: int, kind: str, lane: int, name: str) -> str:
    return (
        f'"pid":{machine + 1},"tid":0,"cat":"{kind}","id2":{{"local":"{kind}{lane}"}},'
        f'"name":{_json(name)}'
    )


def _thread(trace: Trace, lane: int) -> int:
    # Above all process ids: Perfetto treats a thread with its process's id as the main thread.
    return len(trace.machine_names) + 1 + lane


def _slices(num_rows: int) -> Iterator[slice]:
    for first in range(0, num_rows, _CHUNK_ROWS):
        yield slice(first, min(first + _CHUNK_ROWS, num_rows))


def _microseconds(seconds: float) -> float:
    # Whole nanoseconds, so that rounding cannot make consecutive slices overlap.
    return round(seconds * 1e9) / 1e3


def _json(value: object) -> str:
    # Perfetto does not decode escapes such as \u2192, so write UTF-8.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
