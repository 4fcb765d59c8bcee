"""Interpreted kernels compute what compiled ones do; which of the two is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from headrace.core.job import Sync
from headrace.planner.methods.anneal import shortlist
from headrace.policies import interpreted
from headrace.policies.flow import FLOW_POLICIES
from headrace.policies.interpreted import CALLER, KernelCaller
from headrace.simulator import Rehearser, build_instance, simulate
from tests.oracle.instances import random_case

PLENTY_S = 1e9


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All kernels are interpreted that may be."""
    monkeypatch.setattr(interpreted, "_is_compiled", lambda kernel, args: False)
    CALLER.set_budget(PLENTY_S)
    yield
    CALLER.set_budget(0.0)


@pytest.mark.parametrize("sync", list(Sync))
@pytest.mark.parametrize("policy", FLOW_POLICIES)
def test_simulates_the_same_bit_for_bit(policy: str, sync: Sync, nothing_compiled: None) -> None:
    case = random_case(5, sync=sync)
    instance, _ = build_instance(case.problem, case.placement, num_iterations=5, seed=2)
    for general in (False, True):
        CALLER.set_budget(PLENTY_S)
        ours = simulate(instance, policy, record=True, general=general)
        CALLER.set_budget(0.0)
        theirs = simulate(instance, policy, record=True, general=general)
        assert ours.makespan_s == theirs.makespan_s
        assert ours.num_events == theirs.num_events
        assert ours.in_bytes.tobytes() == theirs.in_bytes.tobytes()
        assert ours.record is not None
        assert theirs.record is not None
        assert ours.record.flow_end_s.tobytes() == theirs.record.flow_end_s.tobytes()
        assert ours.record.nic_use.in_bytes_per_s.tobytes() == (
            theirs.record.nic_use.in_bytes_per_s.tobytes()
        )


@pytest.mark.parametrize("seed", range(3))
def test_rehearses_and_bounds_the_same(seed: int, nothing_compiled: None) -> None:
    case = random_case(seed, sync=Sync.PS)
    found = []
    for budget_s in (PLENTY_S, 0.0):
        CALLER.set_budget(budget_s)
        rehearser = Rehearser(case.problem, num_iterations=4, seed=seed)
        makespan_s = rehearser.makespan_s(case.placement, "maxmin")
        candidates, bound_s = shortlist(case.problem, seed=seed, steps=50)
        found.append((makespan_s, candidates, bound_s))
    assert found[0] == found[1]


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module with a kernel that was never compiled."""
    (tmp_path / "some_kernels.py").write_text(
        "from headrace.policies.compiled import hot, hot_loop\n"
        "@hot\ndef _half(x):\n    return x / 2\n"
        "@hot_loop\ndef halve(x):\n    return _half(x)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    yield importlib.import_module("some_kernels")
    del sys.modules["some_kernels"]


def test_a_compiled_or_cached_kernel_is_not_interpreted(kernels: ModuleType) -> None:
    caller = KernelCaller()
    caller.set_budget(1.0)
    assert caller.call(kernels.halve, 3.0, estimate_s=0.1) == 1.5
    assert not kernels.halve.signatures
    assert kernels.halve(3.0) == 1.5
    assert caller.choose(kernels.halve, (3.0,), 0.1) is kernels.halve
    # Another type is another compilation.
    assert caller.choose(kernels.halve, (np.zeros(1),), 0.1) is not kernels.halve
    again = importlib.reload(kernels)
    assert not again.halve.signatures
    assert caller.choose(again.halve, (3.0,), 0.1) is again.halve


def test_a_kernel_is_interpreted_within_the_budget(kernels: ModuleType) -> None:
    caller = KernelCaller()
    assert caller.choose(kernels.halve, (1.0,), 0.1) is kernels.halve
    caller.set_budget(1.0)
    assert caller.choose(kernels.halve, (1.0,), 0.3, num_calls=4) is kernels.halve
    # Three are expected; the budget is for those.
    for _ in range(3):
        assert caller.choose(kernels.halve, (1.0,), 0.3, num_calls=3) is not kernels.halve
    assert caller.choose(kernels.halve, (1.0,), 0.3, num_calls=3) is kernels.halve


def test_kernels_are_compiled_beside_and_waited_for(kernels: ModuleType) -> None:
    events: list[str] = []

    def compile_kernels() -> Callable[[], object]:
        events.append("compile")
        return lambda: events.append("wait")

    caller = KernelCaller()
    caller.set_budget(10.0, compile_kernels)
    assert caller.choose(kernels.halve, (1.0,), 20.0) is kernels.halve
    assert caller.choose(kernels.halve, (1.0,), 4.0) is not kernels.halve
    assert events == []
    assert caller.choose(kernels.halve, (1.0,), 4.0) is not kernels.halve
    assert events == ["compile"]
    assert caller.choose(kernels.halve, (1.0,), 4.0) is kernels.halve
    assert events == ["compile", "wait"]
    caller.finish()
    assert events == ["compile", "wait"]
    assert caller.choose(kernels.halve, (1.0,), 1e-9) is kernels.halve


def test_kernels_are_compiled_at_the_end_of_a_short_use(kernels: ModuleType) -> None:
    events: list[str] = []

    def compile_kernels() -> Callable[[], object]:
        events.append("compile")
        return lambda: None

    caller = KernelCaller()
    for num_used in (0, 1):
        caller.set_budget(10.0, compile_kernels)
        for _ in range(num_used):
            assert caller.choose(kernels.halve, (1.0,), 0.1) is not kernels.halve
        caller.finish()
        assert len(events) == num_used
