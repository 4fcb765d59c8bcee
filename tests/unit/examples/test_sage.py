"""The PyG script and its headrace version differ in a few lines, which the page shows."""

from __future__ import annotations

import difflib
from pathlib import Path

ROOT = Path(__file__).parents[3]
MOST_CHANGED_LINES = 10


def test_few_lines_change() -> None:
    theirs, ours = (
        (ROOT / "examples" / name).read_text().splitlines()
        for name in ("pyg_sage.py", "headrace_sage.py")
    )
    lines = list(difflib.unified_diff(theirs, ours, n=0, lineterm=""))[2:]
    changed = [line for line in lines if not line.startswith("@@")]
    added = [line for line in changed if line.startswith("+") and line != "+"]
    removed = [line for line in changed if line.startswith("-") and line != "-"]
    assert max(len(added), len(removed)) <= MOST_CHANGED_LINES
    page = (ROOT / "docs" / "howto" / "training.md").read_text()
    for line in added + removed:
        assert f"\n{line}\n" in page, line
