"""The first command interprets kernels and compiles them in the background."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.cli import kernels
from headrace.policies.interpreted import CALLER
from headrace.simulator.pair_kernel import run_pairs


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry per process that was started in the background."""
    calls: list[str] = []
    monkeypatch.delenv(kernels.VARIABLE)

    def compile_in_background() -> Callable[[], object]:
        calls.append("compile")
        return lambda: None

    monkeypatch.setattr(kernels, "compile_in_background", compile_in_background)
    return calls


def test_kernels_are_compiled_beside_a_command_that_interprets_one(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("headrace.policies.interpreted._is_compiled", lambda kernel, args: False)
    with kernels.first_use(said.append):
        assert CALLER.call(_half, 4.0, estimate_s=0.1) == 2.0
        assert CALLER.call(_half, 2.0, estimate_s=0.1) == 1.0
    assert started == ["compile"]
    assert said == [kernels.IN_BACKGROUND]
    assert CALLER.choose(_half, (4.0,), 1e-9) is _half


def test_nothing_is_started_if_nothing_was_interpreted(started: list[str]) -> None:
    said: list[str] = []
    with kernels.first_use(said.append):
        pass
    assert (started, said) == ([], [])


def test_kernels_are_compiled_at_once_if_the_environment_says_so(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernels.VARIABLE, "now")
    monkeypatch.setattr("headrace.policies.interpreted._is_compiled", lambda kernel, args: False)
    with kernels.first_use(lambda line: None):
        assert CALLER.choose(_half, (4.0,), 0.1) is _half
    assert not started


def test_all_families_of_policies_are_compiled() -> None:
    kernels.compile_kernels()
    assert len(run_pairs.signatures) == 2  # type: ignore[attr-defined]


def _half(x: float) -> float:
    return x / 2
