"""Trace files: numpy archives with a JSON header."""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import SpecError
from headrace.core.full_graph import RowSwap
from headrace.core.trace import TRACE_VERSION, Executions, Flows, Mark, NicUse, Trace

_TABLES = {"executions": Executions, "flows": Flows, "nic_use": NicUse, "local": Flows}

_UNREADABLE = (
    KeyError, TypeError, ValueError, AttributeError, EOFError, RuntimeError, ArithmeticError,
    MemoryError, struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
"""Exceptions of numpy and zipfile for damaged archives; members have checksums."""


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace to a file; equal traces give equal files."""
    header: dict[str, Any] = {
        "version": TRACE_VERSION,
        "task_names": trace.task_names,
        "task_roles": trace.task_roles,
        "machine_names": trace.machine_names,
    }
    if trace.marks:
        header["marks"] = [[mark.at_s, mark.text] for mark in trace.marks]
    if trace.swaps:
        header["swaps"] = [swap.model_dump(mode="json") for swap in trace.swaps]
    arrays = {
        "header": np.frombuffer(json.dumps(header).encode(), np.uint8),
        "task_machines": trace.task_machines,
        "nic_in_bytes_per_s": trace.nic_in_bytes_per_s,
        "nic_out_bytes_per_s": trace.nic_out_bytes_per_s,
    }
    if trace.seeds is not None:
        arrays["seeds"] = trace.seeds
    for name in _TABLES:
        table = getattr(trace, name)
        if table is not None:
            for field in fields(table):
                arrays[f"{name}.{field.name}"] = getattr(table, field.name)
    with Path(path).open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace written by `save_trace`.

    Raises:
        SpecError: The file is missing, not a trace, or of another version.
    """
    remedy = "pass a file written by `headrace run` or `headrace profile`"
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive)
        header: dict[str, Any] = json.loads(arrays["header"].tobytes())
        if header["version"] != TRACE_VERSION:
            raise SpecError(
                f"{path} has version {header['version']}, this headrace reads {TRACE_VERSION}",
                "use the headrace version that wrote it",
            )
        tables = {name: _table(kind, name, arrays) for name, kind in _TABLES.items()}
        return Trace(
            task_names=tuple(header["task_names"]),
            task_roles=tuple(header["task_roles"]),
            machine_names=tuple(header["machine_names"]),
            task_machines=arrays["task_machines"],
            nic_in_bytes_per_s=arrays["nic_in_bytes_per_s"],
            nic_out_bytes_per_s=arrays["nic_out_bytes_per_s"],
            marks=tuple(Mark(at_s, text) for at_s, text in header.get("marks", ())),
            seeds=arrays.get("seeds"),
            swaps=tuple(map(RowSwap.model_validate, header.get("swaps", ()))),
            **tables,
        )
    except SpecError:
        raise
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}", remedy) from None
    except _UNREADABLE:
        raise SpecError(f"{path} is not a trace", remedy) from None


def _table(kind: type[Any], name: str, arrays: dict[str, np.ndarray]) -> Any:
    if not any(key.startswith(f"{name}.") for key in arrays):
        return None
    return kind(**{field.name: arrays[f"{name}.{field.name}"] for field in fields(kind)})
