"""Checks of the installed dependencies; imports none of them at module level."""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Literal

OLDEST_PYTHON, FIRST_UNTESTED_PYTHON = (3, 11), (3, 14)
"""Supported Python versions; must match `requires-python` in pyproject.toml."""


_EXTRA = {
    "matplotlib": "headrace[report]",
    "ortools": "headrace[exact]",
    "pymetis": "headrace[partition]",
    "kaminpar": "headrace[partition]",
    "pyarrow": "headrace[partition]",
    "torch": "headrace[train]",
    "torch_geometric": "headrace[train]",
    "cryptography": "headrace[train]",
    "safetensors": "headrace[train]",
    "pyroute2": "headrace[shape]",
    "ray": "headrace[train]",
}


@dataclass(frozen=True)
class Part:
    """Check result of one dependency; `base` is required, `extra` is optional."""

    name: str
    group: Literal["base", "extra"]
    status: Literal["works", "missing", "broken"]
    version: str
    purpose: str
    detail: str = ""


@dataclass(frozen=True)
class Checkup:
    """Results of `headrace doctor`."""

    parts: tuple[Part, ...]

    @property
    def base_works(self) -> bool:
        """Whether all required dependencies work."""
        return all(part.status == "works" for part in self.parts if part.group == "base")

    def summary(self) -> dict[str, Any]:
        """Plain values with stable names: the output of `headrace doctor --json`."""
        return {"base_works": self.base_works, "parts": [asdict(part) for part in self.parts]}


def check_parts() -> Checkup:
    """Check every dependency."""
    return Checkup(
        (
            _check_python(),
            _try("numpy", "base", "arrays", lambda: import_module("numpy")),
            _try("pydantic", "base", "validation", lambda: import_module("pydantic")),
            _try("PyYAML", "base", "YAML files", lambda: import_module("yaml")),
            _try("typer", "base", "command line", lambda: import_module("typer")),
            _try("rich", "base", "tables", lambda: import_module("rich.table")),
            _try("numba", "base", "JIT compilation", _compile_something),
            _try("numba cache", "base", "JIT cache", _write_to_cache, package="numba"),
            _try("matplotlib", "extra", "--gantt charts", _draw_something),
            _try("ortools", "extra", "--method exact", _prove_something),
            _try("pymetis", "extra", "partitioning", _cut_something),
            _try("kaminpar", "extra", "large graphs", lambda: import_module("kaminpar")),
            _try("pyarrow", "extra", "Parquet files", lambda: import_module("pyarrow.parquet")),
            _try("torch", "extra", "tensors", lambda: import_module("torch")),
            _try("torch_geometric", "extra", "models", lambda: import_module("torch_geometric")),
            _try("cryptography", "extra", "TLS", lambda: import_module("cryptography.x509")),
            _try("safetensors", "extra", "export", lambda: import_module("safetensors.torch")),
            _try("ray", "extra", "cluster runs", lambda: import_module("ray")),
            _try("pyroute2", "extra", "bandwidth limits", lambda: import_module("pyroute2")),
        )
    )


def _check_python() -> Part:
    found = ".".join(map(str, sys.version_info[:3]))
    supported = OLDEST_PYTHON <= sys.version_info[:2] < FIRST_UNTESTED_PYTHON
    detail = "" if supported else "use Python 3.11 to 3.13"
    return Part("python", "base", "works" if supported else "broken", found, "interpreter", detail)


def _try(
    name: str,
    group: Literal["base", "extra"],
    purpose: str,
    attempt: Callable[[], object],
    package: str | None = None,
) -> Part:
    version = _version(package or name)
    remedy = f"pip install '{_EXTRA[name]}'" if group == "extra" else f"pip install {name}"
    if version is None:
        return Part(name, group, "missing", "", purpose, remedy)
    try:
        found = attempt()
    except Exception as error:  # a broken installation may raise anything
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        return Part(name, group, "broken", version, purpose, reason[0])
    return Part(name, group, "works", version, purpose, found if isinstance(found, str) else "")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _compile_something() -> None:
    numba = import_module("numba")
    if numba.njit(lambda x: x + 1)(1) != 2:
        raise RuntimeError("code compiled by numba returns a wrong sum")


def _write_to_cache() -> str:
    # Numba refuses to declare a cached function if it finds no writable directory.
    kernel = import_module("headrace.policies.flow.oes").oes_rates
    folder = Path(kernel.stats.cache_path)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return str(folder)


def _draw_something() -> None:
    figure = import_module("matplotlib.figure").Figure()
    figure.add_subplot().plot([0, 1])
    figure.savefig(io.BytesIO(), format="png")


def _prove_something() -> None:
    cp_model = import_module("ortools.sat.python.cp_model")
    model, solver = cp_model.CpModel(), cp_model.CpSolver()
    number = model.new_int_var(0, 3, "number")
    model.maximize(number)
    if solver.solve(model) != cp_model.OPTIMAL or solver.value(number) != 3:
        raise RuntimeError("CP-SAT returns a wrong maximum")


def _cut_something() -> None:
    import numpy as np

    from headrace.graph.adjacency import Adjacency
    from headrace.graph.partitioners._base import Question
    from headrace.graph.partitioners.metis import Metis

    path = Adjacency(np.array([0, 1, 3, 5, 6]), np.array([1, 0, 2, 1, 3, 2], np.int32))
    parts = Metis().assign(Question(path, np.array([0.5, 0.5])), lambda name: None)
    if parts[0] != parts[1] or parts[2] != parts[3]:
        raise RuntimeError("METIS returns a wrong partition of a path of four nodes")
