"""Totals of work agree with the trace of the same records."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from headrace.core.job import Sync
from headrace.profiling.trace_assembly import merge_records
from headrace.runtime.callbacks.work_totals import WorkTotals
from tests.unit.runtime.listened import small_plan


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def recorded(n: int) -> dict[str, bytes]:
    """What the tasks of both machines record of one iteration."""
    return {
        f"{kind}{w}{more}": lines(*records)
        for w in range(2)
        for kind, more, records in (
            (
                "sampler",
                ".0",
                [
                    ["exec", f"sampler{w}.0", n, 1.0 + n, 2.0 + n, 0.75, 0.5, 4000],
                    ["flow", f"store{1 - w}", f"sampler{w}.0", n, 1000 + w, 1.0 + n, 1.5 + n, 900],
                    ["flow", f"sampler{w}.0", f"store{1 - w}", n, 30, 1.0 + n, 1.5 + n],
                    ["serve", f"store{1 - w}", f"sampler{w}.0", n, 0.125],
                    ["local", f"store{w}", f"sampler{w}.0", n, 555],
                    ["cache", f"sampler{w}.0", n, 30, 10 + w],
                ],
            ),
            (
                "trainer",
                "",
                [
                    ["exec", f"trainer{w}", n, 2.0 + n, 2.5 + n],
                    ["ring", f"trainer{w}", n, 2.25 + n, 2.5 + n, 80_000],
                ],
            ),
        )
    }


def test_totals_agree_with_the_trace() -> None:
    plan, slots = small_plan()
    totals, collected = WorkTotals(), []
    totals.place(plan, slots)
    machines = {slot.task.name: slot.task.machine for slot in slots}
    for n in range(3):
        for task, data in recorded(n).items():
            totals.add(task, data)
            collected.append((machines[task], data))
    trace = merge_records(collected, {}, plan)
    names = np.array(trace.machine_names)[trace.task_machines]
    links: dict[tuple[str, str], float] = {}
    for src, dst, num_bytes in zip(
        trace.flows.src, trace.flows.dst, trace.flows.num_bytes, strict=True
    ):
        link = (str(names[src]), str(names[dst]))
        links[link] = links.get(link, 0.0) + float(num_bytes)
    assert totals.link_bytes == pytest.approx(links)
    assert totals.link_bytes["m1", "m0"] > 3 * 1000
    assert totals.remote_bytes == {
        "features": 3 * 2 * 900,
        "structure": 3 * (100 + 101 + 2 * 30),
        "gradients": pytest.approx(sum(links.values()) - 3 * (1000 + 1001 + 2 * 30)),
    }
    assert totals.cached_rows.tolist() == [180, 63]
    assert totals.steps == {"sampler0.0": 3, "sampler1.0": 3, "trainer0": 3, "trainer1": 3}
    assert totals.busy_s == pytest.approx(
        {
            "sampler0.0": 2.25,
            "sampler1.0": 2.25,
            "store0": 0.375,
            "store1": 0.375,
            "trainer0": 1.5,
            "trainer1": 1.5,
        }
    )


def test_data_may_be_cut_anywhere() -> None:
    plan, slots = small_plan()
    data = recorded(0)["sampler0.0"] + recorded(1)["sampler0.0"]
    whole = WorkTotals()
    whole.place(plan, slots)
    whole.add("sampler0.0", data)
    for cut in range(len(data) + 1):
        totals = WorkTotals()
        totals.place(plan, slots)
        totals.add("sampler0.0", data[:cut])
        totals.add("sampler0.0", data[cut:])
        assert (totals.steps, totals.link_bytes) == (whole.steps, whole.link_bytes)


def test_what_a_killed_process_left_is_passed_over() -> None:
    plan, slots = small_plan()
    totals = WorkTotals()
    totals.place(plan, slots)
    totals.add(
        "trainer0", b'["exec","trainer0",0,1.0,\n' + lines(["exec", "trainer0", 1, 1.0, 2.0])
    )
    assert totals.steps == {"trainer0": 1}


def test_nothing_goes_round_with_parameter_servers() -> None:
    plan, slots = small_plan()
    job = plan.job.model_copy(update={"sync": Sync.PS})
    totals = WorkTotals()
    totals.place(plan.model_copy(update={"job": job}), slots)
    # Trainers record how long they waited for the servers, as they do for a ring.
    totals.add("trainer0", lines(["ring", "trainer0", 0, 2.25, 2.5, 80_000]))
    assert totals.link_bytes == {}
