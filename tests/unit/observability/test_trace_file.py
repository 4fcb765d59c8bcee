"""Traces on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.core.trace import Mark
from headrace.observability.trace_file import load_trace, save_trace
from tests.unit.observability import traces


def test_equal_traces_are_equal_files_and_come_back(tmp_path: Path) -> None:
    trace = traces.tiny_trace()
    for name in "ab":
        save_trace(trace, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    found = load_trace(tmp_path / "a")
    assert found.task_roles == trace.task_roles
    assert found.machine_names == trace.machine_names
    assert np.array_equal(found.flows.num_bytes, trace.flows.num_bytes)
    assert found.local is None
    assert found.makespan_s == trace.makespan_s


def test_decisions_come_back(tmp_path: Path) -> None:
    marks = (Mark(0.5, "store1 on m1 was killed: restarting it"),)
    save_trace(replace(traces.tiny_trace(), marks=marks), tmp_path / "marked")
    assert load_trace(tmp_path / "marked").marks == marks


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        load_trace(tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(SpecError, match="text is not a trace"):
        load_trace(tmp_path / "text")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(SpecError, match="is not a trace"):
        load_trace(tmp_path / "other.npz")
    header = np.frombuffer(json.dumps({"version": 99}).encode(), np.uint8)
    np.savez(tmp_path / "new.npz", header=header)
    with pytest.raises(SpecError, match="has version 99"):
        load_trace(tmp_path / "new.npz")
