"""A script's files come whole, beside those of the run and never in their place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.errors import SpecError
from headrace.runtime.run_dir.run_dir import RunDirectory, push


def test_a_file_comes_whole_or_not_at_all(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionError

    push(tmp_path, "best.pt", [b"old"])
    push(tmp_path, "best.pt", [b"a ", b"whole one"])
    with pytest.raises(ConnectionError):
        push(tmp_path, "best.pt", broken())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "best.pt": b"a whole one"
    }


def test_nothing_of_the_run_is_replaced(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "a") as run:
        run.append_event("begin")
        run.append_report({"loss": 1.0})
        own = [path.name for path in run.path.iterdir()]
        own += [run.plan.name, run.summary.name, "run.json", "trace.npz", "trace-ps0.jsonl"]
        for name in own:
            with pytest.raises(SpecError, match="another name"):
                push(run.path, name, [b"x"])


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/b", "", ".", "..", ".bashrc"])
def test_nothing_is_written_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError):
        push(tmp_path, name, [b"x"])
    assert list(tmp_path.iterdir()) == []
