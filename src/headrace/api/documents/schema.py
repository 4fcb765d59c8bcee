"""JSON schemas of all file formats."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from headrace.core.cluster import Cluster
from headrace.core.coflows import CoflowGraph
from headrace.core.errors import SpecError
from headrace.core.job import Job
from headrace.core.placement import PlacementFile
from headrace.core.plan import Plan
from headrace.core.profile import Profile
from headrace.core.report import Report
from headrace.core.values import KEY, CheckedFile, Value
from headrace.graph.format.manifest import Manifest
from headrace.jobs.sweep import SweepSettings
from headrace.runtime.run_dir.status import Status
from headrace.runtime.run_dir.store_set import StoreSetState

SCHEMA_KINDS: Mapping[str, type[Value]] = {
    "cluster": Cluster,
    "job": Job,
    "profile": Profile,
    "placement": PlacementFile,
    "plan": Plan,
    "graph": Manifest,
    "status": Status,
    "report": Report,
    "stores": StoreSetState,
    "sweep": SweepSettings,
    "coflows": CoflowGraph,
}
"""Models of the file formats, by their name in `headrace schema`."""

_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n     .*)*)", re.MULTILINE)


def json_schema(kind: str) -> dict[str, Any]:
    """Return the JSON schema of a file format, for completion and validation in editors.

    Args:
        kind: `cluster`, `job`, `profile`, `placement`, `plan`, `graph`, `status`, `report`,
            `stores`, `sweep` or `coflows`.

    Raises:
        SpecError: The file format is unknown.

    Example:
        >>> import headrace
        >>> sorted(headrace.json_schema("cluster")["properties"])
        ['machines', 'version']
    """
    if kind not in SCHEMA_KINDS:
        raise SpecError(f"unknown schema {kind!r}", f"use one of {', '.join(SCHEMA_KINDS)}")
    schema = SCHEMA_KINDS[kind].model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        _describe_properties(part)
    schema["properties"]["version"]["description"] = "Version of the file format."
    if issubclass(SCHEMA_KINDS[kind], CheckedFile):
        about = "Checksum of all other keys; not verified if absent."
        schema["properties"][KEY] = {"type": "string", "description": about}
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema}


def schema_text(kind: str) -> str:
    """Return the text of the schema file."""
    return json.dumps(json_schema(kind), indent=2) + "\n"


def _describe_properties(part: dict[str, Any]) -> None:
    """Move the docstring's attribute descriptions to the properties."""
    for choice in (part, *part.get("anyOf", ())):
        about, found, attributes = choice.get("description", "").partition("\n\nAttributes:\n")
        if found:
            choice["description"] = about
            for name, text in _ATTRIBUTE.findall(attributes):
                if name in choice.get("properties", {}):
                    choice["properties"][name]["description"] = " ".join(text.split())
