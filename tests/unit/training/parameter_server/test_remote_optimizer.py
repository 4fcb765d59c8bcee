"""A script's optimizer works as before, whoever makes its steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headrace.core.errors import SpecError  # noqa: E402
from headrace.rpc.errors import StoreError  # noqa: E402
from headrace.training.parameter_server.optimizer_specs import OPTIMIZERS  # noqa: E402
from headrace.training.parameter_server.remote_optimizer import RemoteOptimizer  # noqa: E402
from headrace.training.parameter_server.service import ParameterService  # noqa: E402
from headrace.training.parameter_server.types import Exchange  # noqa: E402
from tests.unit.training.parameter_server.in_process import make_servers, reach, together  # noqa: E402

NUM_STEPS = 4
Make = Callable[[Any], Any]


def make_model(seed: int = 0) -> Any:
    # Made anew from a generator: threads must not share torch's.
    drawing = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=drawing))
    return model


def data(step: int) -> tuple[Any, Any]:
    drawing = torch.Generator().manual_seed(100 + step)
    return torch.randn(8, 3, generator=drawing), torch.randn(8, 2, generator=drawing)


def share(model: Any, optimizer: Any, made: list[ParameterService], **settings: Any) -> Any:
    rank, weight = settings.pop("rank", 0), settings.pop("weight", lambda: 1.0)
    is_quantised = settings.pop("is_quantised", False)
    servers = reach(made, rank, **settings)
    return RemoteOptimizer(optimizer, servers, 0, weight, is_quantised=is_quantised)


def learn(model: Any, optimizer: Any, first: int = 0, num: int = NUM_STEPS) -> list[Any]:
    for step in range(first, first + num):
        inputs, targets = data(step)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_same(ours: Any, theirs: Any) -> None:
    for own, other in zip(ours, theirs, strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("num_servers", [1, 3])
def test_every_optimizer_steps_as_torch_does(name: str, num_servers: int) -> None:
    def make(model: Any) -> Any:
        layers = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.02}]
        return getattr(torch.optim, name)(layers, lr=0.1)

    alone, model = make_model(), make_model()
    theirs, ours = make(alone), make(model)
    share(model, ours, make_servers(num_servers))
    assert_same(learn(model, ours), learn(alone, theirs))
    # What servers keep is what torch keeps, and can be put back.
    found, expected = ours.state_dict(), theirs.state_dict()
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    for number, kept in expected["state"].items():
        assert found["state"][number].keys() == kept.keys()
        for key, value in kept.items():
            assert torch.equal(found["state"][number][key], value), key
            assert found["state"][number][key].dtype == value.dtype, key
    resumed = make_model()
    resumed.load_state_dict(model.state_dict())
    again = make(resumed)
    share(resumed, again, make_servers(2))
    again.load_state_dict(found)
    assert_same(learn(resumed, again, NUM_STEPS), learn(alone, theirs, NUM_STEPS))


@pytest.mark.parametrize("num_servers", [1, 2, 40])
def test_trainers_learn_what_one_would(num_servers: int) -> None:
    made, weights = make_servers(num_servers, 3), (0.5, 0.25, 0.25)

    def train(rank: int) -> Any:
        # Parameters of rank 0 count.
        model = make_model(rank)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        share(model, optimizer, made, rank=rank, weight=lambda: weights[rank])
        for step in range(NUM_STEPS):
            inputs, targets = data(step)
            own = {0: slice(0, 4), 1: slice(4, 6), 2: slice(6, 8)}[rank]
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs[own]), targets[own]).backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    first, *others = together(3, train)
    for other in others:
        assert_same(first, other)
    alone = make_model()
    for own, expected in zip(
        first, learn(alone, torch.optim.Adam(alone.parameters(), lr=0.1)), strict=True
    ):
        torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-5)
    # The same again, whoever comes first: to the last bit.
    made = make_servers(num_servers, 3)
    assert_same(first, together(3, train)[0])


def test_gradients_in_8_bits_lead_to_about_the_same_model() -> None:
    def trained(is_quantised: bool) -> list[Any]:
        made = make_servers(2, num_trainers=2)

        def train(rank: int) -> list[Any]:
            model = make_model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            settings = {"rank": rank, "weight": lambda: 0.5, "is_quantised": is_quantised}
            share(model, optimizer, made, **settings)
            return learn(model, optimizer, num=40)

        first, second = together(2, train)
        assert_same(first, second)
        return first

    exact, quantised = trained(False), trained(True)
    for one, other in zip(exact, quantised, strict=True):
        assert not torch.equal(one, other)
        assert (one - other).abs().max() < 0.01


@pytest.mark.parametrize("is_late", [False, True])
def test_schedulers_hooks_and_closures_work(is_late: bool) -> None:
    found = []
    for shares in (False, True):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if shares and is_late:
            share(model, optimizer, make_servers(2))
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=NUM_STEPS + 1)
        if shares and not is_late:
            share(model, optimizer, make_servers(2))
        seen: list[str] = []
        optimizer.register_step_pre_hook(lambda *_, seen=seen: seen.append("before"))
        optimizer.register_step_post_hook(lambda *_, seen=seen: seen.append("after"))

        def loss(model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            inputs, targets = data(0)
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            return loss

        losses = []
        for _ in range(NUM_STEPS):
            losses.append(optimizer.step(loss).item())
            scheduler.step()
        assert seen == ["before", "after"] * NUM_STEPS
        found.append((list(model.parameters()), losses))
    assert_same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_what_the_script_changes_by_hand_is_kept() -> None:
    found = []
    for shares in (False, True):
        model = make_model()
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.5)
        learn(model, optimizer, num=1)  # state that servers must take over
        if shares:
            share(model, optimizer, make_servers(2))
        learn(model, optimizer, 1, 1)
        for parameter in model.parameters():
            parameter.data.clamp_(-0.3, 0.3)
        found.append(learn(model, optimizer, 2))
    assert_same(*found)


def test_what_has_no_gradient_stays_as_it_is() -> None:
    found = []
    for shares in (False, True):
        model = make_model()
        model[2].bias.requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        if shares:
            share(model, optimizer, make_servers(2))
        for step in range(3):
            inputs, targets = data(step)
            optimizer.zero_grad()
            last = model[2] if step % 2 else torch.nn.functional.linear
            arguments = () if step % 2 else (model[2].weight.detach(),)
            out = last(model[1](model[0](inputs)), *arguments)
            torch.nn.functional.mse_loss(out, targets).backward()
            optimizer.step()
        kept = optimizer.state_dict()["state"]
        found.append((list(model.parameters()), {n: float(s["step"]) for n, s in kept.items()}))
    assert_same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] == {0: 3.0, 1: 3.0, 2: 1.0}


def test_changed_gradients_and_other_parameters_are_refused() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    share(model, optimizer, make_servers(1))
    learn(model, optimizer)
    inputs, targets = data(0)
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with pytest.raises(SpecError, match="gradients were changed"):
        optimizer.step()
    optimizer.zero_grad()
    learn(model, optimizer)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    with pytest.raises(SpecError, match="parameters of the optimizer changed"):
        optimizer.step()
    model.half()
    with pytest.raises(SpecError, match=r"torch\.float16"):
        share(model, torch.optim.SGD(model.parameters(), lr=0.1), make_servers(1))


@pytest.mark.parametrize("max_norm", [1e-2, 1e3])
def test_gradients_of_all_trainers_together_are_clipped(max_norm: float) -> None:
    made, norms = make_servers(3, 2), []

    def train(rank: int) -> Any:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        shared = share(model, optimizer, made, rank=rank, weight=lambda: 0.5)
        for step in range(NUM_STEPS):
            inputs, targets = data(step)
            own = slice(4 * rank, 4 * rank + 4)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs[own]), targets[own]).backward()
            norm = shared.clip(max_norm)
            if rank == 0:
                norms.append(norm)
            assert shared.clip(10 * max_norm) == pytest.approx(min(norm, max_norm), rel=1e-3)
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    first, second = together(2, train)
    assert_same(first, second)
    alone, expected = make_model(), []
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.5, momentum=0.9)
    for step in range(NUM_STEPS):
        inputs, targets = data(step)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(alone(inputs), targets).backward()
        expected.append(float(torch.nn.utils.clip_grad_norm_(alone.parameters(), max_norm)))
        optimizer.step()
    assert norms == pytest.approx(expected, rel=1e-4)
    for own, other in zip(first, alone.parameters(), strict=True):
        torch.testing.assert_close(own, other.detach(), atol=1e-5, rtol=1e-5)


def test_other_models_and_trainers_that_do_not_come_are_named() -> None:
    made, begun = make_servers(1, 2), threading.Event()
    told: list[tuple[str, bool]] = []

    def train(rank: int) -> None:
        model = torch.nn.Linear(2, 2 + rank)
        if rank:
            assert begun.wait(30)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reached = reach(made, rank, timeout_s=20, notify=lambda *each: told.append(each))
        shared = RemoteOptimizer(optimizer, reached, 0, lambda: 1.0)
        begun.set()
        model(torch.ones(1, 2)).sum().backward()
        shared.step()

    with pytest.raises(StoreError, match=r"ps0 has no gradients of rank 1 after 20 s"):
        together(2, train)
    assert told == [("gradients of rank 1", True)]
    with pytest.raises(StoreError, match="rank 1 has a different model"):
        train(1)


def test_exchanges_are_told() -> None:
    told: list[list[Exchange]] = []
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    share(model, optimizer, make_servers(2), record=lambda each: told.append(list(each)))
    learn(model, optimizer, num=2)
    num_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert [[each.server for each in step] for step in told] == [["ps0", "ps1"]] * 2
    assert [step[0].iteration for step in told] == [0, 1]
    for step in told:
        for each in step:
            assert num_bytes / 2 < each.got_bytes < each.sent_bytes < num_bytes / 2 + 600
            there_s, back_s = each.moving_s
            assert 0 <= back_s <= there_s <= each.end_s - each.start_s
    assert all(np.isfinite([a[0].end_s, b[0].start_s]).all() for a, b in pairwise(told))
