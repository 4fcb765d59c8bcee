"""Loading and saving of files; errors name the file, the line and the remedy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import ValidationError

from headrace.api.documents.schema import SCHEMA_KINDS
from headrace.api.documents.yaml_source import Document, read_document
from headrace.core.cluster import Cluster, Machine
from headrace.core.coflows import CoflowGraph
from headrace.core.errors import SpecError
from headrace.core.job import UNLIMITED_WINDOW, Job
from headrace.core.placement import Placement, PlacementFile
from headrace.core.plan import Plan
from headrace.core.profile import Profile
from headrace.core.units import quote
from headrace.core.validation_errors import as_written, problems_of
from headrace.core.values import Value

AnyPath = str | os.PathLike[str]
V = TypeVar("V", bound=Value)

_SLOWEST_NIC_BYTES_PER_S = 1000.0
"""Minimum plausible NIC bandwidth; smaller values are probably missing their unit."""


def load_cluster(path: AnyPath) -> Cluster:
    """Read a cluster file.

    Raises:
        SpecError: The file is invalid; the message names file, line and remedy.

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
    _check_nics(cluster.machines, document)
    return cluster


def load_coflows(path: AnyPath) -> CoflowGraph:
    """Read a file of tasks and coflows.

    Raises:
        SpecError: The file is invalid; the message names file, line and remedy.

    Example:
        >>> from pathlib import Path
        >>> import headrace
        >>> path = Path("coflows.yaml")
        >>> _ = path.write_text('''
        ... machines: [{name: m, count: 2, nic: 1Gbps}]
        ... types: [pipeline]
        ... tasks: [{name: a, machine: m-0, time: 10ms}, {name: b, machine: m-1, time: 10ms}]
        ... coflows: [{name: c, type: pipeline, flows: [{src: a, dst: b, bytes: 1MB}]}]
        ... ''')
        >>> headrace.load_coflows(path).num_flows
        1
    """
    document = read_document(path, "coflows")
    graph = _validate(CoflowGraph, document)
    _check_nics(graph.machines, document)
    return graph


def load_job(path: AnyPath) -> Job:
    """Read a job file.

    Raises:
        SpecError: The file is invalid; the message names file, line and remedy.

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
            "a window of 0 allows no iteration to start",
            "write 1 for no overlap, or `unlimited`",
            ("window",),
        )
    return job


def load_profile(path: AnyPath) -> Profile:
    """Read a profile file.

    Raises:
        SpecError: The file is invalid; the message names file, line and remedy.

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
    """Read a placement file, or the placement of a plan file, and resolve its machine names.

    Args:
        path: The file.
        cluster: The machines that the file refers to.
        job: If given, the placement must fit this job on this cluster.

    Raises:
        SpecError: The file is invalid; the message names file, line and remedy.
        InfeasibleError: The tasks on a machine exceed its resources.

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
    """Read a plan file, which contains all inputs of the plan.

    Raises:
        SpecError: The file is invalid or was modified; the message names file and line.
        InfeasibleError: The tasks on a machine exceed its resources.

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
    """Read a plan file; returns None for a placement file."""
    return load_plan(path) if _is_plan(read_document(path, "placement")) else None


def save_plan(plan: Plan, path: AnyPath) -> None:
    """Write a plan as indented JSON, suitable for line-by-line diffs.

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
        Path(path).write_text(plan.to_text(indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise SpecError(f"{path} cannot be written ({reason})", "choose another path") from None


def _is_plan(document: Document) -> bool:
    return "fingerprints" in document.data


def _validate(model: type[V], document: Document) -> V:
    _check_version(model, document)
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        found = problems_of(error, model, document.data)
    _check_kind(document)
    # A missing key is often a misspelt one, so report present but invalid values first.
    problems = sorted(found, key=lambda each: (each.is_missing, document.line(each.at)))
    first = problems[0]
    lines = [document.line(each.at) for each in problems]
    others = sorted(set(lines) - {lines[0]})
    also = f" (see also line{'s' if len(others) > 1 else ''} {_listed(others)})" if others else ""
    raise document.error(first.problem + also, first.remedy, first.at)


def _check_nics(machines: Sequence[Machine], document: Document) -> None:
    for i, machine in enumerate(machines):
        if min(machine.nic_in, machine.nic_out) < _SLOWEST_NIC_BYTES_PER_S:
            slow = "nic_in" if machine.nic_in < _SLOWEST_NIC_BYTES_PER_S else "nic_out"
            raise document.error(
                f"{getattr(machine, slow):g} bytes per second is too slow for a NIC",
                "write the bandwidth with its unit, like 10Gbps",
                as_written(document.data, ("machines", i, slow)),
            )


def _listed(lines: list[int]) -> str:
    shown = [str(line) for line in lines[:5]] + (["..."] if len(lines) > 5 else [])
    return ", ".join(shown)


def _check_version(model: type[Value], document: Document) -> None:
    known: tuple[int, ...] = get_args(model.model_fields["version"].annotation)
    version = document.data.get("version", known[0])
    if type(version) is int and version in known:
        return
    versions = f"version{'s' if len(known) > 1 else ''} {' and '.join(map(str, known))}"
    if type(version) is int and version > known[-1]:
        problem = f"the file has version {version}, this headrace reads {versions}"
        raise document.error(problem, "upgrade headrace", ("version",))
    raise document.error(
        f"{quote(version)} is not a version; this headrace reads {versions}",
        f"write `version: {known[-1]}`",
        ("version",),
    )


def _check_kind(document: Document) -> None:
    """Detect a file of another kind, e.g. a job file passed as the cluster file."""
    keys = {str(key) for key in document.data} - {"version"}
    if not keys or keys & SCHEMA_KINDS[document.kind].model_fields.keys():
        return
    for kind, model in SCHEMA_KINDS.items():
        if keys <= model.model_fields.keys():
            remedy = f"pass the {document.kind} file here and this one as the {kind}"
            if document.kind == "plan":
                remedy = (
                    "pass the output of `headrace plan --cluster CLUSTER --job JOB --output PLAN`"
                )
            raise document.error(
                f"this looks like a {kind} file, not a {document.kind} file", remedy
            )
