"""Which partitioner for which graph."""

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
"""Up to here METIS: 22 s and 2.2 GiB at 48 M arcs, 213 s and 9.5 GiB at 163 M, where KaMinPar needs
as long and 2.2 GiB."""

_KAMINPAR_ARCS = 2_000_000_000
"""Up to here KaMinPar, in 32-bit ids; beyond, re-streamed Fennel, which keeps nothing but nodes in
memory."""


def choose_method(num_arcs: int) -> str:
    """What `auto` stands for: the best cut that a graph of this size allows with what is here."""
    if num_arcs <= _METIS_ARCS and find_spec("pymetis") is not None:
        return "metis"
    if num_arcs <= _KAMINPAR_ARCS and find_spec("kaminpar") is not None:
        return "kaminpar"
    return "fennel"


def check_method(method: str) -> None:
    """Find out before long work whether a method can be used.

    Raises:
        SpecError: There is none of that name.
        MissingExtraError: What it needs is not installed.
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
    """A partitioner by name.

    Args:
        method: One of `METHODS`.
        scratch: Folder for large temporary files.
    """
    if method == "metis":
        return Metis()
    if method == "kaminpar":
        return KaMinPar(scratch)
    if method == "fennel":
        return Fennel()
    if method == "hash":
        return Hash()
    return Range()
