"""A trainer asks for samplers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
