"""Request handlers of a store. Every request is validated before memory is allocated for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from pydantic import ValidationError

from headrace.core.errors import SpecError
from headrace.core.validation_errors import first_problem
from headrace.graph.format.row_codec import SparseRows, StoredRows
from headrace.graph.sampling.hop import LEAST_FAR, EdgePart, HopRequest, Rule, hop_over
from headrace.graph.schema import TypeName
from headrace.graph.store.embedding_service import (
    MAX_PIECES,
    Embeddings,
    EmbeddingService,
    GradientPush,
)
from headrace.graph.store.embedding_table import EmbeddingSpec
from headrace.graph.store.page_cache import PageCacheWarmer, resident_bytes
from headrace.graph.store.shard import Shard, ShardRows
from headrace.linux.memory import memory_bytes
from headrace.rpc.config import RpcLimits
from headrace.rpc.framing import Fields, Message
from headrace.rpc.service import RpcService

_MAX_FANOUT = 1 << 20


class StoreService(RpcService):
    """Handles requests to one graph partition.

    If `clock` is set, replies to `sample` and `gather` include the service time.
    """

    def __init__(
        self,
        shard: Shard,
        limits: RpcLimits,
        warmer: PageCacheWarmer | None = None,
        clock: Callable[[], float] | None = None,
        embeddings: Embeddings | None = None,
    ) -> None:
        super().__init__()
        self._shard = shard
        self._embeddings = embeddings
        self._limits = limits
        self._warmer = warmer
        self._clock = clock
        # Cached because columns of some dtypes are converted.
        self._edges_by = lru_cache(maxsize=16)(shard.edges_by)
        self._operations: Mapping[str, Callable[[_Parser], tuple[Fields, tuple[np.ndarray, ...]]]]
        self._operations = {
            "sample": self._sample,
            "gather": self._gather,
            "embed": self._embed,
            "push": self._push,
            "put": self._put,
            "status": self._status,
            "ping": self._ping,
        }

    def prepare(self) -> None:
        """Compile the kernels, which takes longer than a client's timeout.

        Includes likely weight and time columns; others are compiled at first use.
        """
        for rows in self._shard.rows.values():
            if isinstance(rows.values, SparseRows):
                rows.values.take(np.empty(0, np.int64))
        compiled: set[tuple[str, ...]] = set()
        for edge_type in self._shard.edges:
            for weight, time in self._shard.likely_columns(edge_type):
                part = self._shard.edges_by(edge_type, weight, time)
                arrays = (part.indptr, part.indices, part.originals, part.weights, part.times)
                kinds = tuple("" if a is None else a.dtype.name for a in arrays)
                if kinds in compiled:
                    continue
                compiled.add(kinds)
                nodes = np.arange(part.first_node, part.first_node + min(len(part.indptr) - 1, 1))
                bounds = None if time is None else np.zeros(len(nodes), np.int64)
                hop_over([part], HopRequest(edge_type, nodes, 1, 0, bounds=bounds))
                if part.is_uniform:
                    hop_over([part], HopRequest(edge_type, nodes, 1, 0, Rule(far=0.5), near=(0, 1)))
                    # Original ids have the dtype of new ids and are not needed to compile.
                    part = replace(part, source_ids=None)
                    hop_over([part], HopRequest(edge_type, nodes, 1, 0, Rule(labor=True)))

    def answer(self, request: Message) -> Message:
        """Handle a request; raise `SpecError` if it is invalid or exceeds the limits."""
        parser = _Parser(request)
        name = parser.text("op")
        if name not in self._operations:
            raise SpecError(
                f"unknown operation {name[:40]!r}", f"use one of {', '.join(self._operations)}"
            )
        self.count(name)
        clock = self._clock if name in ("sample", "gather") else None
        began_s = clock() if clock else 0.0
        fields, arrays = self._operations[name](parser)
        if clock:
            fields = {**fields, "service_s": round(clock() - began_s, 6)}
        return Message(request.number, fields, arrays)

    def close(self) -> None:
        """Release all waiting requests."""
        if self._embeddings is not None:
            self._embeddings.close()

    def _sample(self, parser: _Parser) -> tuple[Fields, tuple[np.ndarray, ...]]:
        edge_type = parser.edge_type("edge_type")
        weight, time = parser.name("weight"), parser.name("time")
        for name in (weight, time):
            self._shard.check_edge_column(name)
        part = self._edges_by(edge_type, weight, time)
        fanout = parser.whole("fanout", -1, _MAX_FANOUT)
        key = parser.whole("key", 0, 2**64 - 1)
        flags = {
            name: parser.flag(name)
            for name in (
                "replace", "disjoint", "last", "edge_ids", "labor", "has_trees", "has_bounds"
            )
        }  # fmt: skip
        has_trees, has_bounds = flags.pop("has_trees"), flags.pop("has_bounds")
        far, near = parser.fraction("far", LEAST_FAR, 1), parser.pair("near")
        parser.end(1 + has_trees + has_bounds)
        nodes = parser.ids(0, part.first_node, len(part.indptr) - 1, self._limits.max_rows)
        trees = parser.integers(1, len(nodes)) if has_trees else None
        bounds = parser.integers(1 + has_trees, len(nodes)) if has_bounds else None
        rule = Rule(**flags, far=far)
        request = HopRequest(edge_type, nodes, fanout, key, rule, trees, bounds, near=near)
        item_bytes = part.indices.itemsize + 8 * request.rule.edge_ids
        most = len(nodes) * fanout
        if fanout < 0 or most * item_bytes > self._limits.max_reply_bytes:
            most = _most_neighbours(part, request)
        self._check_reply("neighbours", 8 * len(nodes) + item_bytes * most)
        hop = hop_over([part], request)
        return {}, (hop.counts, hop.neighbours, hop.edges)

    def _gather(self, parser: _Parser) -> tuple[Fields, tuple[np.ndarray, ...]]:
        rows = self._rows(parser)
        has_dims = parser.flag("has_dims")
        parser.end(1 + has_dims)
        ids = parser.ids(0, rows.first, len(rows.values), self._limits.max_rows)
        values, local, dims = rows.values, ids - rows.first, None
        if has_dims:
            if rows.is_encoded or rows.array.ndim != 2:
                raise SpecError(
                    "rows of the column are encoded or not one-dimensional",
                    "request it without dims",
                )
            dims = parser.ids(1, 0, rows.array.shape[1], rows.array.shape[1])
        if isinstance(values, SparseRows):
            num_bytes = 2 * values.num_units(local)
        else:
            width = math.prod(values.shape[1:]) if dims is None else len(dims)
            num_bytes = values.itemsize * width * len(ids)
        self._check_reply("rows", num_bytes)
        return {"dtype": rows.dtype}, (take_rows(values, local, dims),)

    def _embed(self, parser: _Parser) -> tuple[Fields, tuple[np.ndarray, ...]]:
        node_type, column, spec = parser.text("of"), parser.text("column"), parser.mapping("spec")
        parser.end(0)
        try:
            wanted = EmbeddingSpec.model_validate(spec)
        except ValidationError as error:
            raise SpecError(f"an embedding's {first_problem(error)}", "see EmbeddingSpec") from None
        self._require_embeddings().make(node_type, column, wanted)
        return {}, ()

    def _push(self, parser: _Parser) -> tuple[Fields, tuple[np.ndarray, ...]]:
        service, first = self._optimizer_shard(parser)
        rank, number = parser.whole("rank", 0, 1 << 16), parser.whole("round", 1, 2**63)
        num_pieces = parser.whole("num_pieces", 1, MAX_PIECES)
        piece = parser.whole("piece", 0, num_pieces - 1)
        has_any, lr = parser.flag("has_any"), parser.fraction("lr", 0, 1e9)
        parser.end(2)
        values = service.embedding.values
        ids = parser.ids(0, first, len(values), self._limits.max_rows)
        gradients = parser.floats(1, (len(ids), *values.shape[1:]))
        is_made = service.push(
            GradientPush(rank, number, piece, num_pieces, has_any, lr, ids - first, gradients)
        )
        return {"is_made": is_made, "num_steps": service.embedding.num_steps}, ()

    def _put(self, parser: _Parser) -> tuple[Fields, tuple[np.ndarray, ...]]:
        service, first = self._optimizer_shard(parser)
        num_steps = parser.whole("num_steps", 0, 2**63)
        parser.end(2 + service.embedding.spec.num_states)
        values = service.embedding.values
        ids = parser.ids(0, first, len(values), self._limits.max_rows)
        shape = (len(ids), *values.shape[1:])
        arrays = [parser.floats(i, shape) for i in range(1, len(parser.arrays))]
        service.put(ids - first, arrays, num_steps)
        return {}, ()

    def _optimizer_shard(self, parser: _Parser) -> tuple[EmbeddingService, int]:
        """An embedding's optimizer shard, and the id of its first row."""
        node_type, column = parser.text("of"), parser.text("column")
        embeddings = self._require_embeddings()
        service, rows = (
            embeddings.optimizer_shard(node_type, column),
            embeddings.rows(node_type, column),
        )
        assert rows is not None
        return service, rows.first

    def _require_embeddings(self) -> Embeddings:
        if self._embeddings is None:
            raise SpecError("embeddings are disabled on this store", "set embedding_folder")
        return self._embeddings

    def _status(self, parser: _Parser) -> tuple[Fields, tuple[np.ndarray, ...]]:
        parser.end(0)
        features = [rows.values for rows in self._shard.rows.values() if rows.files]
        arrays = [each.units if isinstance(each, SparseRows) else each for each in features]
        resident = [resident_bytes(array) for array in arrays]
        known = [num_bytes for num_bytes in resident if num_bytes is not None]
        with self._lock:
            counts = dict(self._counts)
        return {
            "part": self._shard.part,
            "num_edges": sum(len(part.indices) for part in self._shard.edges.values()),
            "feature_bytes": sum(values.nbytes for values in features),
            "resident_bytes": sum(known) if len(known) == len(resident) else None,
            "warmed_bytes": self._warmer.read_bytes if self._warmer else 0,
            "to_warm_bytes": self._warmer.total_bytes if self._warmer else 0,
            "memory_bytes": memory_bytes(),
            "counts": counts,
        }, ()

    def _ping(self, parser: _Parser) -> tuple[Fields, tuple[np.ndarray, ...]]:
        parser.end(0)
        return {}, ()

    def _rows(self, parser: _Parser) -> ShardRows:
        type_name, column = parser.type_name("of"), parser.text("column")
        rows = self._shard.rows.get((type_name, column))
        if rows is None and self._embeddings is not None and isinstance(type_name, str):
            rows = self._embeddings.rows(type_name, column)
        if rows is None:
            known = [name for of, name in self._shard.rows if of == type_name]
            raise SpecError(
                f"{type_name!r} has no column {column[:40]!r}",
                f"it has {', '.join(known) or 'none'}",
            )
        return rows

    def _check_reply(self, what: str, num_bytes: int) -> None:
        if num_bytes > self._limits.max_reply_bytes:
            raise SpecError(
                f"{num_bytes} bytes of {what} were requested, a reply has at most "
                f"{self._limits.max_reply_bytes}",
                "request fewer nodes at once",
            )


class _Parser:
    """Pops and validates the fields of a request; fields left over are an error."""

    def __init__(self, request: Message) -> None:
        self._fields = dict(request.fields)
        self.arrays = request.arrays

    def _pop(self, name: str) -> Any:
        if name not in self._fields:
            raise SpecError(f"the request lacks {name!r}", "use the same version everywhere")
        return self._fields.pop(name)

    def text(self, name: str) -> str:
        value = self._pop(name)
        if not isinstance(value, str) or len(value) > 1000:
            raise _wrong(name, "a string of at most 1000 characters")
        return value

    def name(self, name: str) -> str | None:
        return self._pop(name) if self._fields.get(name, "") is None else self.text(name)

    def flag(self, name: str) -> bool:
        value = self._pop(name)
        if not isinstance(value, bool):
            raise _wrong(name, "true or false")
        return value

    def whole(self, name: str, least: int, most: int) -> int:
        value = self._pop(name)
        if type(value) is not int or not least <= value <= most:
            raise _wrong(name, f"an integer from {least} to {most}")
        return value

    def fraction(self, name: str, least: float, most: float) -> float:
        value = self._pop(name)
        if type(value) not in (int, float) or not least <= value <= most:
            raise _wrong(name, f"a number from {least} to {most}")
        return float(value)

    def pair(self, name: str) -> tuple[int, int] | None:
        value = self._pop(name)
        if value is None:
            return None
        ids = isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value)
        if not ids or not 0 <= value[0] <= value[1] < 2**63:
            raise _wrong(name, "two ascending ids or nothing")
        return value[0], value[1]

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._pop(name)
        if not isinstance(value, dict):
            raise _wrong(name, "a mapping")
        return value

    def edge_type(self, name: str) -> tuple[str, str, str]:
        value = self._pop(name)
        if isinstance(value, list) and len(value) == 3 and all(type(v) is str for v in value):
            return value[0], value[1], value[2]
        raise _wrong(name, "source type, relation and destination type")

    def type_name(self, name: str) -> TypeName:
        if isinstance(self._fields.get(name), list):
            return self.edge_type(name)
        return self.text(name)

    def end(self, num_arrays: int) -> None:
        """Check that all fields were popped and that the number of arrays is right."""
        if self._fields:
            names = ", ".join(repr(name[:40]) for name in list(self._fields)[:5])
            raise SpecError(f"the request has unknown fields {names}", "leave them out")
        if len(self.arrays) != num_arrays:
            raise SpecError(
                f"the request has {len(self.arrays)} arrays", f"it needs {num_arrays} of them"
            )

    def integers(self, position: int, length: int) -> np.ndarray:
        array = self.arrays[position]
        if array.dtype != np.int64 or array.shape != (length,):
            raise SpecError(
                f"array {position} is {array.dtype} {array.shape}", f"send int64 ({length},)"
            )
        return array

    def floats(self, position: int, shape: tuple[int, ...]) -> np.ndarray:
        array = self.arrays[position]
        if array.dtype != np.float32 or array.shape != shape:
            raise SpecError(
                f"array {position} is {array.dtype} {array.shape}", f"send float32 {shape}"
            )
        if not np.isfinite(array).all():
            raise SpecError("a value is not finite", "lower the learning rate or clip gradients")
        return array

    def ids(self, position: int, first: int, count: int, max_rows: int) -> np.ndarray:
        array = self.arrays[position]
        if array.dtype != np.int64 or array.ndim != 1:
            raise SpecError(f"ids are {array.dtype} {array.shape}", "send int64, one dimension")
        if len(array) > max_rows:
            problem = f"{len(array)} ids were sent, at most {max_rows} are allowed"
            raise SpecError(problem, "request fewer at once")
        # Without a sign, ids below the first are above all others: one comparison, not two.
        if len(array) and (array - first).view(np.uint64).max() >= count:
            raise SpecError(
                f"ids {array.min()} to {array.max()} were sent",
                f"this store has {first} to {first + count - 1}",
            )
        return array


def take_rows(values: StoredRows, local: np.ndarray, dims: np.ndarray | None) -> np.ndarray:
    """Copy rows, or some dimensions of each; ids must be in range."""
    if isinstance(values, SparseRows):
        return values.take(local)
    if dims is None:
        out = np.empty((len(local), *values.shape[1:]), values.dtype)
        # A request without ids may be for an empty partition.
        return np.take(values, local, axis=0, out=out, mode="clip") if len(local) else out
    if len(dims) and np.array_equal(dims, np.arange(dims[0], dims[0] + len(dims))):
        return np.ascontiguousarray(values[local, dims[0] : dims[0] + len(dims)])
    return np.ascontiguousarray(values[local[:, None], dims])


def _most_neighbours(part: EdgePart, request: HopRequest) -> int:
    """Upper bound of the neighbours a hop returns."""
    local = request.nodes - part.first_node
    degrees = np.asarray(part.indptr[local + 1] - part.indptr[local])
    if request.fanout < 0:
        return int(degrees.sum())
    if request.rule.replace:
        return len(local) * request.fanout
    return int(np.minimum(degrees, request.fanout).sum())


def _wrong(name: str, wanted: str) -> SpecError:
    return SpecError(f"the request's {name!r} is invalid", f"send {wanted}")
