"""Optimizers travel as names and numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from headrace.core.errors import SpecError  # noqa: E402
from headrace.training.parameter_server.optimizer_specs import (  # noqa: E402
    OPTIMIZERS,
    check_options,
    defaults_of,
    name_of,
    options_of,
)


def weights() -> list[Any]:
    return [torch.nn.Parameter(torch.ones(2))]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_options_survive_the_way(name: str) -> None:
    optimizer = getattr(torch.optim, name)(weights(), lr=0.25)
    sent = json.loads(json.dumps(options_of(optimizer)))
    assert name_of(optimizer) == name
    (options,) = check_options(name, sent)
    assert options["lr"] == 0.25
    for key, value in defaults_of(name).items():
        assert type(options[key]) is type(value) or key == "lr"
    # What it takes is all that torch has, but for how it computes.
    left_out = set(optimizer.defaults) - set(options)
    assert left_out <= {"foreach", "fused", "capturable", "differentiable"}


def test_numbers_of_torch_become_plain_and_those_of_schedulers_stay_here() -> None:
    optimizer = torch.optim.Adam(weights(), lr=torch.tensor(0.5))
    optimizer.param_groups[0]["initial_lr"] = 1.0
    (options,) = options_of(optimizer)
    assert options["lr"] == 0.5
    assert options["betas"] == [0.9, 0.999]
    assert "initial_lr" not in options


def test_an_optimizer_that_looks_at_whole_parameters_is_refused_by_name() -> None:
    class Own(torch.optim.SGD):  # type: ignore[misc,name-defined]
        pass

    class Adam(torch.optim.SGD):  # type: ignore[misc,name-defined]
        pass

    for made in (torch.optim.LBFGS(weights()), Own(weights()), Adam(weights())):
        with pytest.raises(SpecError, match=type(made).__name__) as caught:
            name_of(made)
        assert "AdamW" in caught.value.remedy
        assert "sync: ring" in caught.value.remedy


@pytest.mark.parametrize(
    "change",
    [
        {"lr": "0.1"},
        {"lr": float("nan")},
        {"lr": 1e300},
        {"lr": True},
        {"lr": None},
        {"nesterov": 1},
        {"more": 1},
        {"lr": [0.1, 0.2]},
    ],
)
def test_whoever_sends_something_else_is_refused(change: dict[str, Any]) -> None:
    good = options_of(torch.optim.SGD(weights(), lr=0.1))[0]
    assert check_options("SGD", [good])
    with pytest.raises(SpecError):
        check_options("SGD", [{**good, **change}])
    with pytest.raises(SpecError):
        check_options("SGD", [{key: value for key, value in good.items() if key != "lr"}])
    with pytest.raises(SpecError):
        check_options("SGD", ["lr"])
    with pytest.raises(SpecError, match="no optimizer"):
        check_options("Optimizer", [good])
