"""Read what people wrote; every error names the file, the line and the remedy."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headrace.api.documents import At, Document, read_document
from headrace.api.schema import SCHEMA_KINDS, json_schema, schema_at
from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.core.job import UNLIMITED_WINDOW, Job
from headrace.core.placement import Placement, PlacementFile
from headrace.core.plan import Plan
from headrace.core.profile import Profile
from headrace.core.units import quote
from headrace.core.values import Value

AnyPath = str | os.PathLike[str]
V = TypeVar("V", bound=Value)

FILE_VERSION = 1
"""Version of all file formats this headrace reads."""

_SLOWEST_NIC_BYTES_PER_S = 1000.0
"""A slower NIC is taken for a number without its unit; the oldest modems were about that fast."""

_SHORT_FORMS = {"nic_in": "nic", "nic_out": "nic"}
_OTHER_WORDS = {
    "bandwidth": "nic",
    "hosts": "machines",
    "nodes": "machines",
    "prefetch": "window",
    "servers": "parameter_servers",
    "workers": "trainers",
}


def load_cluster(path: AnyPath) -> Cluster:
    """Read a cluster file.

    Raises:
        SpecError: It cannot be understood; the message names file, line and remedy.

    Example:
        >>> from pathlib import Path
        >>> import headrace
        >>> path = Path("cluster.yaml")
        >>> _ = path.write_text("machines: [{name: m, count: 3, nic: 1Gbps}]")
        >>> headrace.load_cluster(path).num_machines
        3
    """
    document = read_document(path, "cluster")
    cluster = _validate(Cluster, document)
    for i, machine in enumerate(cluster.machines):
        if min(machine.nic_in, machine.nic_out) < _SLOWEST_NIC_BYTES_PER_S:
            slow = "nic_in" if machine.nic_in < _SLOWEST_NIC_BYTES_PER_S else "nic_out"
            raise document.error(
                f"{getattr(machine, slow):g} bytes per second is no network card",
                "write the bandwidth with its unit, like 10Gbps",
                _written(document, ("machines", i, slow)),
            )
    return cluster


def load_job(path: AnyPath) -> Job:
    """Read a job file.

    Raises:
        SpecError: It cannot be understood; the message names file, line and remedy.

    Example:
        >>> from pathlib import Path
        >>> import headrace
        >>> path = Path("job.yaml")
        >>> _ = path.write_text("{trainers: 2, batch_size: 100, model_bytes: 1MB}")
        >>> headrace.load_job(path).model_bytes
        1000000.0
    """
    document = read_document(path, "job")
    job = _validate(Job, document)
    if job.window == UNLIMITED_WINDOW and document.data["window"] != "unlimited":
        raise document.error(
            "a window of 0 lets nobody start", "write 1 for no overlap, or `unlimited`", ("window",)
        )
    return job


def load_profile(path: AnyPath) -> Profile:
    """Read a profile.

    Raises:
        SpecError: It cannot be understood; the message names file, line and remedy.

    Example:
        >>> from pathlib import Path
        >>> import headrace
        >>> path = Path("profile.yaml")
        >>> _ = path.write_text(headrace.default_profile().model_dump_json())
        >>> headrace.load_profile(path) == headrace.default_profile()
        True
    """
    return _validate(Profile, read_document(path, "profile"))


def load_placement(path: AnyPath, cluster: Cluster, job: Job | None = None) -> Placement:
    """Read a placement file, or the placement of a plan, and find its machines in the cluster.

    Args:
        path: The file.
        cluster: Whose machines it names.
        job: If given, the placement must fit this job on this cluster.

    Raises:
        SpecError: It cannot be understood; the message names file, line and remedy.
        InfeasibleError: It asks a machine for more than it has.

    Example:
        >>> from pathlib import Path
        >>> import headrace
        >>> machines = [headrace.Machine(name="m", count=3, nic="1Gbps")]
        >>> cluster = headrace.Cluster(machines=machines)
        >>> path = Path("placement.yaml")
        >>> _ = path.write_text("{samplers: [m-0, m-1], trainers: [m-0, m-1]}")
        >>> headrace.load_placement(path, cluster).trainers
        (0, 1)
    """
    document = read_document(path, "placement")
    is_plan = _is_plan(document)
    file = load_plan(path).placement if is_plan else _validate(PlacementFile, document)
    try:
        placement = file.resolve(cluster)
        if job is not None:
            placement.check(cluster, job)
    except SpecError as error:
        at = ("placement", *error.at) if is_plan else error.at
        raise document.error(error.problem, error.remedy, at) from None
    return placement


def load_plan(path: AnyPath) -> Plan:
    """Read a plan; it holds everything it was made for.

    Raises:
        SpecError: It cannot be understood, or was changed; the message names file and line.
        InfeasibleError: It asks a machine for more than it has.

    Example:
        >>> import headrace
        >>> machines = [headrace.Machine(name="m", count=3, nic="1Gbps")]
        >>> cluster = headrace.Cluster(machines=machines)
        >>> job = headrace.Job(trainers=2, batch_size=100, iterations=20)
        >>> plan = headrace.plan(cluster, job, method="colocate", policy="maxmin")
        >>> headrace.save_plan(plan, "plan.json")
        >>> headrace.load_plan("plan.json") == plan
        True
    """
    return _validate(Plan, read_document(path, "plan"))


def find_plan(path: AnyPath) -> Plan | None:
    """Read a plan, if it is one and not a placement file.

    Raises:
        SpecError: It is one and cannot be understood.
        InfeasibleError: It asks a machine for more than it has.
    """
    return load_plan(path) if _is_plan(read_document(path, "placement")) else None


def save_plan(plan: Plan, path: AnyPath) -> None:
    """Write a plan as JSON that people can read and compare line by line.

    Raises:
        SpecError: The file cannot be written.

    Example:
        >>> import headrace
        >>> machines = [headrace.Machine(name="m", count=3, nic="1Gbps")]
        >>> cluster = headrace.Cluster(machines=machines)
        >>> job = headrace.Job(trainers=2, batch_size=100, iterations=20)
        >>> plan = headrace.plan(cluster, job, method="colocate", policy="maxmin")
        >>> headrace.save_plan(plan, "plan.json")
    """
    try:
        Path(path).write_text(plan.model_dump_json(indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise SpecError(f"{path} cannot be written ({reason})", "choose another path") from None


def _is_plan(document: Document) -> bool:
    return "fingerprints" in document.data


@dataclass(frozen=True)
class _Problem:
    problem: str
    remedy: str
    at: At
    line: int
    is_missing: bool = False


def _validate(model: type[V], document: Document) -> V:
    _check_version(document)
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
    _check_kind(document)
    schema = json_schema(document.kind)
    found = {
        (problem.at, problem.problem): problem
        for problem in (_explain(detail, document, schema) for detail in details if _is_own(detail))
    }
    # A missing key is often a misspelt one: what is there and wrong comes first.
    problems = sorted(found.values(), key=lambda each: (each.is_missing, each.line))
    first = problems[0]
    others = sorted({each.line for each in problems[1:]} - {first.line})
    also = f" (see also line{'s' if len(others) > 1 else ''} {_listed(others)})" if others else ""
    raise document.error(first.problem + also, first.remedy, first.at)


def _is_own(detail: ErrorDetails) -> bool:
    """Whether something is wrong in itself: a list whose entries are wrong also counts as empty."""
    return detail["type"] != "too_short" or not detail["input"]


def _listed(lines: list[int]) -> str:
    shown = [str(line) for line in lines[:5]] + (["..."] if len(lines) > 5 else [])
    return ", ".join(shown)


def _check_version(document: Document) -> None:
    version = document.data.get("version", FILE_VERSION)
    if type(version) is int and version == FILE_VERSION:
        return
    if type(version) is int and version > FILE_VERSION:
        problem = f"the file has version {version}, this headrace reads version {FILE_VERSION}"
        raise document.error(problem, "upgrade headrace", ("version",))
    raise document.error(
        f"{quote(version)} is no version, this headrace reads version {FILE_VERSION}",
        f"write `version: {FILE_VERSION}`",
        ("version",),
    )


def _check_kind(document: Document) -> None:
    """Notice a file of another kind, e.g. the job file in the place of the cluster file."""
    keys = {str(key) for key in document.data} - {"version"}
    if not keys or keys & SCHEMA_KINDS[document.kind].model_fields.keys():
        return
    for kind, model in SCHEMA_KINDS.items():
        if keys <= model.model_fields.keys():
            raise document.error(
                f"this looks like a {kind} file, not a {document.kind} file",
                f"give the {document.kind} file here and this one as the {kind}",
            )


def _written(document: Document, at: At) -> At:
    """The place as it is written in the file, where a short form stands for several fields."""
    if at and at[-1] in _SHORT_FORMS and not document.has(at):
        short = (*at[:-1], _SHORT_FORMS[str(at[-1])])
        return short if document.has(short) else at
    return at


def _explain(detail: ErrorDetails, document: Document, schema: dict[str, Any]) -> _Problem:
    error = detail.get("ctx", {}).get("error")
    at: At = tuple(detail["loc"])
    if isinstance(error, SpecError):
        at = _written(document, at + error.at)
        return _Problem(error.problem, error.remedy, at, document.line(at))
    is_key = bool(at) and at[-1] == "[key]"
    if is_key:
        at = at[:-1]
    at = _written(document, at)
    kind, value = detail["type"], at[-1] if is_key else detail["input"]
    if kind == "missing":
        problem, remedy = _explain_missing(at, schema)
        return _Problem(problem, remedy, at[:-1], document.line(at[:-1]), is_missing=True)
    if kind == "extra_forbidden":
        problem, remedy = _explain_unknown(at, schema)
    else:
        problem, remedy = _explain_wrong(kind, value, detail, at)
    return _Problem(problem, remedy, at, document.line(at))


def _explain_missing(at: At, schema: dict[str, Any]) -> tuple[str, str]:
    key = str(at[-1])
    if key in _SHORT_FORMS:
        return (
            f"`{key}` is missing",
            f"add `{_SHORT_FORMS[key]}: 10Gbps`, or `nic_in` and `nic_out`",
        )
    part = schema_at(schema, at)
    example = {"integer": "4", "string": "some text", "array": "[...]"}.get(part.get("type", ""))
    example = str(part.get("examples", [example or "..."])[0])
    return f"`{key}` is missing", f"add `{key}: {example}`"


def _explain_unknown(at: At, schema: dict[str, Any]) -> tuple[str, str]:
    key = str(at[-1])
    part = schema_at(schema, at[:-1])
    known = list(part.get("properties", {}))
    for choice in part.get("anyOf", ()):
        known += choice.get("properties", {})
    guess = _OTHER_WORDS.get(key.lower())
    if guess not in known:
        guess = _closest(key, known)
    remedy = f"did you mean `{guess}`?" if guess else f"remove it; known keys: {', '.join(known)}"
    return "there is no such key", remedy


def _explain_wrong(kind: str, value: object, detail: ErrorDetails, at: At) -> tuple[str, str]:
    problem = f"{quote(value)} is not what belongs here"
    if kind in ("enum", "literal_error"):
        choices = re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get("expected", "")))
        guess = _closest(str(value), choices)
        did_you_mean = f"did you mean `{guess}`? " if guess else ""
        return f"{quote(value)} is not known", f"{did_you_mean}It is one of {', '.join(choices)}"
    if kind in ("too_short", "string_too_short"):
        return "it is empty", "write at least one entry"
    if kind.startswith("int_") or kind == "finite_number":
        what = "finite" if kind == "finite_number" else "whole"
        return f"{quote(value)} is not a {what} number", "write one such as 4"
    if kind in ("float_parsing", "float_type"):
        return f"{quote(value)} is not a number", "write one such as 0.5"
    if kind == "string_type":
        is_scalar = not isinstance(value, list | dict) and value is not None
        text = f'put it in quotes: "{value}"' if is_scalar else "write some text"
        return f"{quote(value)} is not text", text
    if kind in ("tuple_type", "list_type"):
        return (
            f"a list belongs here, not {quote(value)}",
            "write one `- ` line per entry, or [a, b, c]",
        )
    if kind in ("mapping_type", "dict_type", "model_type", "model_attributes_type"):
        remedy = "write `key: value` lines below it, or remove it"
        if len(at) == 2 and at[0] == "task_times":
            remedy = f"name the machine class, as in `{at[1]}: {{default: 20ms}}`"
        return f"a mapping belongs here, not {quote(value)}", remedy
    return problem, detail["msg"].replace("Input should", "it should")


def _closest(word: str, known: list[str]) -> str | None:
    """The known word that was probably meant."""
    by_lower = {each.lower(): each for each in known}
    likely = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[likely[0]] if likely else None
