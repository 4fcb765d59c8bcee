"""What a script may ask of parameter servers, and of none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from headrace.core.errors import SpecError  # noqa: E402
from headrace.rpc.config import TaskAddress  # noqa: E402
from headrace.runtime.protocol.run_context import RunContext  # noqa: E402
from headrace.runtime.trainer.context import TrainContext  # noqa: E402
from headrace.runtime.trainer.parameter_servers import ServedModels  # noqa: E402
from headrace.training.parameter_server.client import Servers  # noqa: E402
from tests.unit.training.parameter_server.in_process import make_servers, reach  # noqa: E402


@pytest.fixture
def run() -> RunContext:
    at = TaskAddress(task="ps0", machine="m0", host="127.0.0.1", port=1)
    return RunContext(
        machine="m0", messages=Path("m"), servers=(at,), credentials=Path("keys"), seeds=Path("s")
    )


@pytest.fixture
def _in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_servers(2)
    monkeypatch.setattr(RunContext, "load_credentials", lambda self: None)
    monkeypatch.setattr(Servers, "connect", lambda *_, **__: reach(made))


def step(model: Any, optimizer: Any, clip: Any) -> float:
    optimizer.zero_grad()
    model(torch.ones(4, 3)).pow(2).mean().backward()
    norm: float = clip(model, 0.1)
    optimizer.step()
    return norm


@pytest.mark.usefixtures("_in_process")
def test_a_script_is_the_same_with_and_without_servers(run: RunContext, tmp_path: Path) -> None:
    found = []
    for context in (TrainContext(run, output=tmp_path), TrainContext(output=tmp_path)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        made = torch.optim.Adam(model.parameters(), lr=0.1)
        model, optimizer = context.prepare(model, made)
        assert optimizer is made
        norms = [step(model, optimizer, context.clip_grad_norm) for _ in range(3)]
        found.append(([p.detach().clone() for p in model.parameters()], norms))
    for ours, theirs in zip(found[0][0], found[1][0], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-4)


@pytest.mark.usefixtures("_in_process")
def test_what_is_prepared_wrongly_is_said(run: RunContext) -> None:
    served, model = ServedModels(run), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(SpecError, match="without an optimizer") as caught:
        served.synchronise(model, None)
    assert "sync: ring" in caught.value.remedy
    with pytest.raises(SpecError, match="LBFGS"):
        served.synchronise(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(SpecError, match="not prepared"):
        served.clip(model, 1.0)
    served.synchronise(model, optimizer)
    with pytest.raises(SpecError, match="prepared already"):
        served.synchronise(model, optimizer)
