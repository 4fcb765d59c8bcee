"""The performance page says what the result files say."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.performance_page import PAGE, page, section
from benchmarks.performance_tables import SECTIONS


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python benchmarks/performance_page.py"


def test_figures_that_are_not_there_are_left_out() -> None:
    for name in SECTIONS:
        text = section(name, {"date": "2026-11-15T10:00:00+00:00", "command": "python x.py"})
        assert "| what | found |" not in text
        assert "2026-11-15;" in text
        assert "python x.py" in text


def test_a_file_that_nobody_described_is_shown(tmp_path: Path) -> None:
    result = {"deep": {"ratio": 1.25, "all": []}, "is_well": True, "machine": {"cores": 2}}
    (tmp_path / "new_thing.json").write_text(json.dumps(result))
    text = page(tmp_path)
    assert "## New thing" in text
    assert "| deep / ratio | 1.25 |" in text
    assert "| is well | yes |" in text


def test_paths_of_a_machine_are_not_shown() -> None:
    text = section("faults", {"commands": ["python a.py --scratch /home/me/x --output=/tmp/y b"]})
    assert "python a.py --scratch ... --output=... b" in text


def test_notes_of_a_file_are_shown() -> None:
    text = section("data_path", {"gather_ratio": 0.5, "gather_ratio_is": "of one request"})
    assert "| 0.5 times |" in text
    assert "- gather ratio: of one request" in text
