"""Selection of the partitioner."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from headrace.core.errors import MissingExtraError, SpecError
from headrace.graph.partitioners._base import Partitioner
from headrace.graph.partitioners.baselines import Hash, Range
from headrace.graph.partitioners.fennel import Fennel
from headrace.graph.partitioners.kaminpar_partitioner import KaMinPar
from headrace.graph.partitioners.metis import Metis

METHODS = ("metis", "kaminpar", "fennel", "hash", "range")
_PACKAGES = {"metis": "pymetis", "kaminpar": "kaminpar"}

_METIS_ARCS = 100_000_000
"""METIS is used up to this size. METIS needs 22 s and 2.2 GiB at 48 M arcs, 213 s and 9.5 GiB at
163 M; KaMinPar needs the same time and 2.2 GiB at 163 M."""

_KAMINPAR_ARCS = 2_000_000_000
"""KaMinPar is used up to this size (32-bit ids), re-streamed Fennel above."""


def choose_method(num_arcs: int) -> str:
    """The method that `auto` selects: the best installed one for a graph of this size."""
    if num_arcs <= _METIS_ARCS and find_spec("pymetis") is not None:
        return "metis"
    if num_arcs <= _KAMINPAR_ARCS and find_spec("kaminpar") is not None:
        return "kaminpar"
    return "fennel"


def check_method(method: str) -> None:
    """Check that a method can be used.

    Raises:
        SpecError: The method is unknown.
        MissingExtraError: A required package is not installed.
    """
    if method not in ("auto", *METHODS):
        raise SpecError(
            f"there is no partitioner {method!r}", f"use auto or one of {', '.join(METHODS)}"
        )
    package = _PACKAGES.get(method)
    if package is not None and find_spec(package) is None:
        raise MissingExtraError(
            f"{package} is not installed",
            "pip install 'headrace[partition]', or use the method fennel",
        )


def find_partitioner(method: str, scratch: Path) -> Partitioner:
    """Create a partitioner by method name; `scratch` is a folder for large temporary files."""
    if method == "metis":
        return Metis()
    if method == "kaminpar":
        return KaMinPar(scratch)
    if method == "fennel":
        return Fennel()
    if method == "hash":
        return Hash()
    return Range()
