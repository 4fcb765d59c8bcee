"""What a script knows of its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.errors import SpecError
from headrace.graph.sampler_worker.config import StoreAddress
from headrace.runtime.protocol.run_context import CONTEXT_VARIABLE, RunContext, current_run

STORE = StoreAddress(part=1, task="store 1", machine="m1", host="127.0.0.1", port=7)


def test_alone_there_is_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTEXT_VARIABLE, raising=False)
    assert current_run() is None


def test_the_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = RunContext(machine="m1", messages=tmp_path / "m", stores=(STORE,), samplers=("s",))
    path = tmp_path / "context.json"
    path.write_text(context.model_dump_json())
    monkeypatch.setenv(CONTEXT_VARIABLE, str(path))
    assert current_run() == context


@pytest.mark.parametrize("text", [None, "{", '{"machine": 1}'])
def test_a_wrong_file_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    path = tmp_path / "context.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv(CONTEXT_VARIABLE, str(path))
    with pytest.raises(SpecError, match="headrace run"):
        current_run()


def test_stores_serve_one_graph(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "parts")
    context = RunContext(
        machine="m1", messages=tmp_path / "m", parts=tmp_path / "parts", stores=(STORE,)
    )
    assert context.stores_of(tmp_path / "link") == (STORE,)
    assert context.stores_of(tmp_path) == ()
    assert context.connect(()) == {}
