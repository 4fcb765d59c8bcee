"""What a store's process is told, and which ports it is to have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.graph.store.config import StoreConfig
from headrace.rpc.service_process import load_config

GIVEN = {"graph": "g", "credentials": "c", "ready": "r"}


@pytest.mark.parametrize(
    ("settings", "ports"),
    [
        ({"part": 3}, {3: 0}),
        ({"part": 0, "port": 777}, {0: 777}),
        ({"parts": {"1": 0, "4": 777}}, {1: 0, 4: 777}),
        ({}, {}),
    ],
)
def test_a_store_serves_one_part_or_several_or_none(
    settings: dict[str, object], ports: dict[int, int], tmp_path: Path
) -> None:
    path = tmp_path / "store.json"
    path.write_text(json.dumps({**GIVEN, **settings}))
    config = load_config(path, StoreConfig)
    assert config.ports == ports
