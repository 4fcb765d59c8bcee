"""METIS with several constraints.

pymetis supports only one constraint, but its extension module exports the METIS functions, which
are called directly. This needs no compiler and no system package.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from headrace.core.errors import MissingExtraError, SpecError
from headrace.graph.kernels.quality import count_cut
from headrace.graph.partitioners._base import OnStep, Question
from headrace.graph.partitioners.rebalance import load_parts, repair, stack_weights

_OK = 1
_NUM_OPTIONS = 40  # METIS_NOPTIONS in metis.h
_MOST_SEED = 2**31
_TRIED_ARCS = 4_000_000


@dataclass(frozen=True)
class Metis:
    """Multilevel k-way partitioning that balances all constraints.

    Attributes:
        tightness: Fraction of the problem's tolerance that METIS may use; later stages use the
            rest.
        num_tries: Number of partitionings to compute and repair; the one with the smallest cut is
            returned. `None` selects 8 for small graphs down to 1 above 2 M arcs. With 1, the result
            of METIS is not repaired.
        num_iterations: Refinement passes per level.
    """

    tightness: float = 0.6
    num_tries: int | None = None
    num_iterations: int = 10

    name = "metis"

    def assign(self, question: Question, on_step: OnStep) -> np.ndarray:
        """Partition the graph; see `Partitioner`."""
        num_nodes, num_parts = question.adjacency.num_nodes, question.num_parts
        if num_parts > num_nodes:
            raise SpecError(
                f"{num_parts} partitions requested, but the graph has {num_nodes} nodes",
                f"request at most {num_nodes} partitions",
            )
        if num_parts == 1:
            return np.zeros(num_nodes, np.int32)
        num_tries = self.num_tries
        if num_tries is None:
            num_tries = int(np.clip(_TRIED_ARCS // max(1, question.adjacency.num_arcs), 1, 8))
        cut = _cutter(question, self.num_iterations, on_step)
        if num_tries == 1:
            return cut(question.seed, self.tightness)
        best, best_score = None, (np.inf, np.inf)
        for index in range(num_tries):
            # On small graphs both values of tightness are best about equally often.
            tightness = 1.0 if index % 2 else self.tightness
            parts = repair(question, cut(question.seed + index, tightness))
            score = _score(question, parts)
            if best is None or score < best_score:
                best, best_score = parts, score
        assert best is not None
        return best


def _cutter(
    question: Question, num_iterations: int, on_step: OnStep
) -> Callable[[int, float], np.ndarray]:
    """METIS with all arguments of a problem bound except seed and tightness."""
    library = _library()
    on_step("read")
    weights = _constraints(question)
    num_constraints = weights.shape[1]
    adjacency = question.adjacency

    def as_index(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(values, library.index_dtype)

    indptr, indices, node_weights = map(as_index, (adjacency.indptr, adjacency.indices, weights))
    edge_weights = None if adjacency.weights is None else as_index(adjacency.weights)
    shares = np.repeat(question.shares, num_constraints).astype(library.real_dtype)

    def cut(seed: int, tightness: float) -> np.ndarray:
        on_step("cut")
        tolerance = 1 + tightness * question.tolerance
        return library.part(
            indptr=indptr,
            indices=indices,
            weights=node_weights,
            edge_weights=edge_weights,
            num_parts=question.num_parts,
            shares=shares,
            tolerances=np.full(num_constraints, tolerance, library.real_dtype),
            options={
                "SEED": seed % _MOST_SEED,
                "NITER": num_iterations,
                "CONTIG": 0,
                "NUMBERING": 0,
            },
        )

    return cut


def _score(question: Question, parts: np.ndarray) -> tuple[float, float]:
    """Relative load above the caps, then the cut."""
    loads = load_parts(stack_weights(question), parts, question.num_parts)
    caps = question.caps()
    above = float((np.maximum(loads - caps, 0) / caps).sum())
    adjacency = question.adjacency
    return above, float(count_cut(adjacency.indptr, adjacency.indices, adjacency.weights, parts))


@dataclass(frozen=True)
class _Library:
    """The loaded METIS library.

    Attributes:
        functions: The extension module.
        keys: Position of every option in METIS' option array.
        index_dtype: METIS' `idx_t`.
        real_dtype: METIS' `real_t`.
    """

    functions: Any
    keys: dict[str, int]
    index_dtype: np.dtype
    real_dtype: np.dtype

    def part(
        self,
        *,
        indptr: np.ndarray,
        indices: np.ndarray,
        weights: np.ndarray,
        edge_weights: np.ndarray | None,
        num_parts: int,
        shares: np.ndarray,
        tolerances: np.ndarray,
        options: dict[str, int],
    ) -> np.ndarray:
        """Call `METIS_PartGraphKway` with arrays of this library's dtypes."""
        values = np.zeros(_NUM_OPTIONS, self.index_dtype)
        self.functions.METIS_SetDefaultOptions(_address(values))
        for key, value in options.items():
            values[self.keys[key]] = value
        num_nodes, num_constraints = weights.shape
        parts = np.zeros(num_nodes, self.index_dtype)
        counts = np.array([num_nodes, num_constraints, num_parts, 0], self.index_dtype)
        pointers = [counts[i : i + 1] for i in range(4)]
        # METIS rejects a null pointer, which is the address of an empty numpy array.
        indices = indices if len(indices) else np.zeros(1, self.index_dtype)
        with termination_waits():
            code = self.functions.METIS_PartGraphKway(
                _address(pointers[0]),
                _address(pointers[1]),
                _address(indptr),
                _address(indices),
                _address(weights),
                None,
                None if edge_weights is None else _address(edge_weights),
                _address(pointers[2]),
                _address(shares),
                _address(tolerances),
                _address(values),
                _address(pointers[3]),
                _address(parts),
            )
        if code != _OK:
            raise SpecError(
                f"METIS failed for {num_nodes} nodes and {num_parts} partitions with code {code}",
                "use another method, e.g. kaminpar, or a machine with more memory",
            )
        return parts.astype(np.int32)


@contextmanager
def termination_waits() -> Iterator[None]:
    """Block SIGTERM within the context.

    METIS handles the signal as an internal error and continues with a broken partitioning. In a
    process with several threads, another thread may receive the signal; METIS' handler then crashes
    with a segmentation fault.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def _library() -> _Library:
    """Load METIS and determine the width of its numbers with a graph of eight nodes."""
    try:
        from pymetis import OptionKey, _internal
    except ImportError:
        raise MissingExtraError(
            "pymetis is not installed", "pip install 'headrace[partition]'"
        ) from None
    unfit = MissingExtraError(
        "the installed pymetis does not export the METIS functions",
        "pip install 'pymetis>=2025.1', or use another method, e.g. kaminpar",
    )
    functions = ctypes.CDLL(_internal.__file__)
    if not hasattr(functions, "METIS_PartGraphKway") or not hasattr(
        functions, "METIS_SetDefaultOptions"
    ):
        raise unfit
    keys = {name: int(getattr(OptionKey, name)) for name in _KEYS}
    index_dtype = np.dtype(f"int{_internal._idx_type_width()}")
    for real_dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        library = _Library(functions, keys, index_dtype, real_dtype)
        if _answers_well(library):
            return library
    raise unfit


_KEYS = ("SEED", "NITER", "CONTIG", "NUMBERING")


def _answers_well(library: _Library) -> bool:
    """Whether two cliques, of six and of two nodes, are separated."""
    large, small = np.arange(6), np.arange(6, 8)
    lists = [np.setdiff1d(clique, node) for clique in (large, small) for node in clique]
    # METIS checks that the shares sum to one, which fails for numbers of the wrong width. The
    # padding prevents reads beyond the array if METIS expects wider numbers.
    room = np.zeros(8, library.real_dtype)
    shares, tolerances = room.copy(), room.copy()
    shares[:2], tolerances[:1] = (0.75, 0.25), 1.05
    try:
        parts = library.part(
            indptr=np.cumsum([0, *map(len, lists)]).astype(library.index_dtype),
            indices=np.concatenate(lists).astype(library.index_dtype),
            weights=np.ones((8, 1), library.index_dtype),
            edge_weights=None,
            num_parts=2,
            shares=shares,
            tolerances=tolerances,
            options={"SEED": 1, "CONTIG": 0, "NUMBERING": 0},
        )
    except SpecError:
        return False
    return bool(parts.tolist() == [0] * 6 + [1] * 2)


def _constraints(question: Question) -> np.ndarray:
    """Weights in METIS' layout: (nodes, constraints), without all-zero constraints."""
    columns = [question.weights(c) for c in range(len(question.constraints))]
    # METIS divides by the total of a constraint.
    columns = [column for column in columns if column.any()]
    return np.stack(columns, axis=1).astype(np.int64)


def _address(values: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)
