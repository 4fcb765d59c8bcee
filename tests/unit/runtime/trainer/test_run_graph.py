"""Which graph a script opens."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace.core.errors import SpecError
from headrace.runtime.protocol.run_context import CONTEXT_VARIABLE, RunContext
from headrace.runtime.trainer import run_graph
from tests.unit.graph.small_graphs import homogeneous, write


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(run_graph, "send", lambda path, note: lines.append(note.text))
    return lines


def enter_run(folder: Path, parts: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    context = RunContext(machine="m1", messages=folder / "messages", parts=parts)
    (folder / "run.json").write_text(context.model_dump_json())
    monkeypatch.setenv(CONTEXT_VARIABLE, str(folder / "run.json"))


def test_any_path_means_the_graph_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    for name, num_nodes in {"shipped": 40, "same": 40, "other": 50}.items():
        write(homogeneous(num_nodes, 90), tmp_path / name, 2)
    enter_run(tmp_path, tmp_path / "shipped", monkeypatch)
    monkeypatch.chdir(tmp_path)
    for path in ("parts", tmp_path / "elsewhere", "same"):
        assert headrace.open_graph(path).folder == tmp_path / "shipped"
    assert not said
    assert headrace.open_graph("other").folder == tmp_path / "shipped"
    (line,) = said
    assert "open_graph('other') opens the run's graph" in line


def test_a_path_means_itself_where_a_run_has_no_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    write(homogeneous(), tmp_path / "parts", 2)
    enter_run(tmp_path, None, monkeypatch)
    assert headrace.open_graph(tmp_path / "parts").folder == tmp_path / "parts"
    with pytest.raises(SpecError):
        headrace.open_graph(tmp_path / "elsewhere")
    assert not said
