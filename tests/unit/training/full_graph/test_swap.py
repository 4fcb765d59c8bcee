"""Rows that are rounded on their way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from headrace.core.errors import SpecError  # noqa: E402
from headrace.training.full_graph.swap import (  # noqa: E402
    Swap,
    SwapNotes,
    SwapPolicy,
    _decoded,
    _encoded,
)


@pytest.mark.parametrize(("rounding", "levels"), [("int8", 255), ("int4", 15)])
@pytest.mark.parametrize("shape", [(9, 5), (4, 3, 7), (0, 5), (3, 0)])
def test_values_are_within_half_a_step(rounding: Any, levels: int, shape: tuple[int, ...]) -> None:
    rows = torch.randn(shape)
    found = _decoded(_encoded(rows, rounding), rounding, shape)
    assert found.shape == rows.shape
    if rows.numel():
        flat = rows.flatten(1)
        steps = (flat.amax(1) - flat.amin(1)) / levels
        assert bool(((found - rows).flatten(1).abs() <= 0.501 * steps[:, None]).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_not_finite_stay_so(bad: float) -> None:
    rows = torch.randn(6, 5)
    rows[1, 2] = rows[4, 0] = bad
    found = _decoded(_encoded(rows, "int8"), "int8", (6, 5))
    assert found.isnan().all(1).tolist() == [False, True, False, False, True, False]
    torch.testing.assert_close(found[5], rows[5], atol=0.02, rtol=0)


def test_other_roundings_are_refused() -> None:
    with pytest.raises(SpecError, match="int2"):
        SwapPolicy("int2")  # type: ignore[arg-type]


def test_other_parallelism_is_refused() -> None:
    with pytest.raises(SpecError, match="'columns'"):
        SwapPolicy(parallelism="columns")  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"rounding": "int8"}, {"is_stale": True}])
def test_features_are_exact(settings: Any) -> None:
    with pytest.raises(SpecError, match="omit `rounding` and `is_stale`"):
        SwapPolicy(parallelism="features", **settings)


def test_swaps_have_numbers_in_training_only() -> None:
    policy = SwapPolicy()
    policy.begin(True)
    assert [policy.next_number(), policy.next_number()] == [1, 2]
    policy.begin(True)
    assert policy.next_number() == 1
    policy.begin(False)
    assert policy.next_number() is None


class Notes:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def watch(
        self,
        row_bytes: int,
        is_sum: bool,
        is_back: bool,
        sent_bytes: list[int],
        edges: str,
        slices: str,
    ) -> SwapNotes:
        self.seen.append((row_bytes, is_sum, is_back, sent_bytes, edges, slices))
        return self

    def wait(self) -> None:
        self.seen.append("wait")

    def end(self) -> None:
        self.seen.append("end")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Any]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1
    )
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_swaps_of_training_steps_are_measured(group: Any) -> None:
    notes = Notes()
    policy = SwapPolicy(watch=notes.watch)
    swap = Swap([3], [3], group, policy, is_sum=True, edges="a/to/b")
    rows = torch.randn(3, 5)
    pending = swap.start(rows, 1, is_back=True)
    assert notes.seen == [(20, True, True, [60], "a/to/b", "")]
    torch.testing.assert_close(pending.wait(), rows)
    pending.wait()
    assert notes.seen[1:] == ["wait", "end"]
    swap.start(rows).wait()
    assert len(notes.seen) == 3
    # Values of slices of two columns, of rows of four.
    Swap([6], [6], group, policy, True, "", "columns", 4).start(torch.randn(6), 1).wait()
    assert notes.seen[3] == (16, True, False, [24], "", "columns")
