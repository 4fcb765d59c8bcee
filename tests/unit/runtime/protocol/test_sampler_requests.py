"""A trainer asks for samplers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.core.errors import RunError, SpecError
from headrace.graph.sampler_worker.config import SamplerConfig
from headrace.runtime.protocol.sampler_requests import (
    RequestServer,
    SamplerPlace,
    StartSamplers,
    request_answer,
    request_samplers,
    without_paths,
)
from headrace.runtime.workers.trainer import TrainerActor

CONFIG = SamplerConfig(
    task="sampler0.0",
    graph=Path("here"),
    node_type="node",
    seeds=Path("given"),
    seeds_per_iteration=4,
    batches_per_epoch=3,
    fanouts=((("a", "to", "b"), (5, 5)),),
)


def test_places_come_back(tmp_path: Path) -> None:
    heard: list[StartSamplers] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        heard.append(StartSamplers.model_validate(request))
        return {"places": [{"socket": "/run/s"}, {"host": "10.0.0.2", "port": 77}]}

    server = RequestServer(tmp_path / "ask", answer)
    request = StartSamplers(configs=(without_paths(CONFIG),) * 2, seeds=(None, None), split="train")
    try:
        places = request_samplers(tmp_path / "ask", request, 30)
    finally:
        server.close()
    assert places == (
        SamplerPlace(socket=Path("/run/s")),
        SamplerPlace(host="10.0.0.2", port=77),
    )
    whole = {**heard[0].configs[0], "graph": "there", "seeds": "theirs"}
    assert SamplerConfig.model_validate(whole).seeds_per_iteration == 4


@pytest.mark.parametrize("error", [SpecError("no room", "make some"), OSError("no room")])
def test_what_goes_wrong_is_told(tmp_path: Path, error: Exception) -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        raise error

    server = RequestServer(tmp_path / "ask", answer)
    try:
        with pytest.raises(RunError, match="no room"):
            request_answer(tmp_path / "ask", {"kind": "start_samplers"}, 30)
    finally:
        server.close()


def test_too_few_places_are_noticed(tmp_path: Path) -> None:
    server = RequestServer(tmp_path / "ask", lambda request: {"places": []})
    request = StartSamplers(configs=({},), seeds=(None,), loader="train")
    try:
        with pytest.raises(RunError, match="requested 1 samplers and got 0"):
            request_samplers(tmp_path / "ask", request, 30)
    finally:
        server.close()


def test_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no answer to start_samplers"):
        request_answer(tmp_path / "ask", {"kind": "start_samplers"}, 30)


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 5000,
        b'{"kind": "replace_sampler", "sampler": -1, "epoch": 0, "batch": 0, "why": "x"}',
        b'{"kind": "replace_sampler", "sampler": 2, "epoch": 0, "batch": 0, "why": "x"}',
        b'{"kind": "start_samplers", "configs": [{}], "seeds": ["/no\\u0000where"]}',
        b'{"kind": "start_samplers", "configs": [{}], "seeds": []}',
        b'{"kind": ["start_samplers"]}',
    ],
)
def test_wrong_requests_start_no_sampler(line: bytes) -> None:
    begun: list[Any] = []
    begin = SimpleNamespace(remote=lambda *given: begun.append(given))
    actor = cast(Any, TrainerActor.__new__(TrainerActor))
    actor.task, actor.machine = "trainer0", "m0"
    actor._samplers = [SimpleNamespace(begin=begin, begin_again=begin)] * 2
    actor._places = lambda samplers, began: []
    server = cast(Any, RequestServer.__new__(RequestServer))
    server._answer = actor._answer
    error = server._reply(line)["error"]
    assert error["remedy"] != "see the logs of the run"
    assert begun == []
