"""The published schemas are those of the code, and say what the loaders accept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.api.documents.schema import SCHEMA_KINDS, json_schema, schema_text
from headrace.core.errors import SpecError
from headrace.core.validation_errors import schema_at

SCHEMAS = Path(__file__).parents[4] / "schemas"


@pytest.mark.parametrize("kind", SCHEMA_KINDS)
def test_committed_schema_is_up_to_date(kind: str) -> None:
    committed = (SCHEMAS / f"{kind}.schema.json").read_text()
    assert committed == schema_text(kind), (
        f"run `headrace schema {kind} > schemas/{kind}.schema.json`"
    )


def test_every_committed_schema_has_a_kind() -> None:
    assert {path.name for path in SCHEMAS.iterdir()} == {f"{k}.schema.json" for k in SCHEMA_KINDS}


def test_unknown_kind() -> None:
    with pytest.raises(SpecError, match="use one of cluster, job, profile, placement, plan"):
        json_schema("joob")


def accepts(schema: dict[str, Any], value: object) -> bool:
    """Check a scalar against a schema of alternatives; enough for the units."""
    for choice in schema["anyOf"]:
        if choice.get("type") == "number" and isinstance(value, int | float):
            return bool(value >= choice.get("minimum", 0))
        if choice.get("type") == "string" and isinstance(value, str):
            return bool(re.search(choice["pattern"], value))
    return False


@pytest.mark.parametrize(
    ("kind", "at", "good", "bad"),
    [
        ("cluster", ("machines", 0, "nic"), ["10Gbps", "1.25 GB/s", 1e9], ["10GB", "fast", None]),
        ("cluster", ("machines", 3, "nic_out"), ["10Gbps"], ["10gbps"]),
        ("cluster", ("machines", 0, "resources", "memory"), ["48GiB", 8, "8"], ["48 gigs"]),
        ("job", ("model_bytes",), ["1MB", 0], ["1Mbps"]),
        ("profile", ("task_times", "store", "any", "mean"), ["20ms", ".5s"], ["20msec"]),
        ("profile", ("store_traffic", "matrix", 0, 1), ["1KB", 5], ["1K"]),
    ],
)
def test_units_are_in_the_schema(
    kind: str, at: tuple[str | int, ...], good: list[object], bad: list[object]
) -> None:
    part = schema_at(json_schema(kind), at)
    assert all(accepts(part, value) for value in good)
    assert not any(accepts(part, value) for value in bad)


def test_a_machine_needs_nic_or_both_directions() -> None:
    machine = json_schema("cluster")["$defs"]["Machine"]
    assert machine["required"] == ["name"]
    assert machine["anyOf"] == [{"required": ["nic"]}, {"required": ["nic_in", "nic_out"]}]


def test_a_task_time_may_be_a_bare_duration() -> None:
    time = json_schema("profile")["$defs"]["TaskTime"]
    assert [choice.get("type", "scalar") for choice in time["anyOf"]] == ["object", "scalar"]


def test_window_may_be_unlimited() -> None:
    window = json_schema("job")["properties"]["window"]
    assert {"const": "unlimited"} in window["anyOf"]
    assert window["default"] == 2


def test_properties_are_described() -> None:
    for kind in ("cluster", "job", "profile"):
        schema = json_schema(kind)
        for part in (schema, *schema["$defs"].values()):
            for choice in (part, *part.get("anyOf", ())):
                assert "Attributes:" not in choice.get("description", "")
    trainers = json_schema("job")["properties"]["trainers"]
    assert trainers["description"].startswith("Number of data-parallel trainers")
    window = json_schema("job")["properties"]["window"]["description"]
    assert window.endswith("`unlimited` is the paper's.")


def test_text_is_json_with_a_dialect() -> None:
    assert json.loads(schema_text("job"))["$schema"].startswith("https://json-schema.org/")
