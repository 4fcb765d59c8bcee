"""Scripts whose process is ended before their step is traced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from headrace.core.errors import SpecError
from headrace.runtime.controller import script_step


@pytest.mark.parametrize(
    ("codes", "message"),
    [([-9, 1], "the script failed: no"), ([-9, -9], "the script was ended by SIGKILL")],
)
def test_a_script_whose_process_is_killed_is_traced_again(
    codes: list[int], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(codes)

    class Process:
        def __init__(self, words: list[str], log: Path, *args: Any, **options: Any) -> None:
            self.code = left.pop(0)
            log.write_text("error: no\n")

        def end(self) -> None:
            pass

    monkeypatch.setattr(script_step, "TaskProcess", Process)
    with pytest.raises(SpecError, match=message):
        script_step.trace_script(tmp_path / "train.py", tmp_path, (), None, is_real=False)
    assert not left
