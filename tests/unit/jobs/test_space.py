"""Spaces of sweeps."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.jobs.space import Range, Space, suggester


def test_a_grid_has_all_combinations_in_order() -> None:
    space = Space.of("grid", ["lr=0.1,0.01", "width=64,128", "norm=true"], 10, 0)
    made = suggester(space, {})
    assert space.num_trials == 4
    assert [made.suggest(n) for n in range(4)] == [
        {"lr": 0.1, "width": 64, "norm": True},
        {"lr": 0.1, "width": 128, "norm": True},
        {"lr": 0.01, "width": 64, "norm": True},
        {"lr": 0.01, "width": 128, "norm": True},
    ]


def test_random_values_depend_on_the_seed_only() -> None:
    texts = ["lr=log:1e-4:1e-1", "width=int:16:256", "drop=0:0.5", "opt=adam,sgd"]
    one, two, other = (suggester(Space.of("random", texts, 5, s), {}) for s in (1, 1, 2))
    assert [one.suggest(n) for n in range(5)] == [two.suggest(n) for n in range(5)]
    assert one.suggest(0) != other.suggest(0)
    for number in range(5):
        drawn = one.suggest(number)
        assert drawn is not None
        lr, width = drawn["lr"], drawn["width"]
        assert isinstance(lr, float)
        assert isinstance(width, int)
        assert 1e-4 <= lr <= 1e-1
        assert 16 <= width <= 256
        assert drawn["opt"] in ("adam", "sgd")


def test_a_logarithmic_range_is_uniform_in_its_exponent() -> None:
    rng = np.random.default_rng(0)
    drawn = [Range.parse("lr=log:1e-4:1e-2").draw(rng) for _ in range(400)]
    assert 160 < sum(float(value) < 1e-3 for value in drawn) < 240


@pytest.mark.parametrize(
    "text",
    ["lr", "=1", "lr=", "lr=1:", "lr=2:1", "lr=log:0:1", "lr=log:1,2", "lr=nan:1", "a=1:2:3"],
)
def test_a_wrong_range_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        Range.parse(text)


def test_wrong_spaces_are_refused() -> None:
    with pytest.raises(SpecError, match="two ranges"):
        Space.of("grid", ["a=1", "a=2"], 1, 0)
    with pytest.raises(SpecError, match="needs the values"):
        Space.of("grid", ["a=0:1"], 1, 0)


def test_optuna_suggests_and_learns() -> None:
    pytest.importorskip("optuna")
    space = Space.of("optuna", ["x=-1:1", "kind=a,b"], 30, 0)
    made = suggester(space, {})
    found = []
    for number in range(30):
        values = made.suggest(number)
        assert values is not None
        found.append(float(values["x"]))
        made.tell(number, -((float(values["x"]) - 0.5) ** 2))
    late = [abs(x - 0.5) for x in found[20:]]
    assert np.mean(late) < np.mean([abs(x - 0.5) for x in found[:10]])
    again = suggester(space, {n: {"x": x, "kind": "a"} for n, x in enumerate(found[:5])})
    for number in range(5):
        again.tell(number, found[number])
    assert again.suggest(5) is not None
