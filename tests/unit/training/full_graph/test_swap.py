"""Rows that are rounded on their way."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from headrace.core.errors import SpecError  # noqa: E402
from headrace.training.full_graph.swap import SwapPolicy, _decoded, _encoded  # noqa: E402


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


def test_swaps_have_numbers_in_training_only() -> None:
    policy = SwapPolicy()
    policy.begin(True)
    assert [policy.next_number(), policy.next_number()] == [1, 2]
    policy.begin(True)
    assert policy.next_number() == 1
    policy.begin(False)
    assert policy.next_number() is None
