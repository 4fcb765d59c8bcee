"""Stages of a sub-batch: sample, request features, fill the memory to send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.format.manifest import ColumnInfo
from headrace.graph.loader.graph_view import GraphView
from headrace.graph.sampler_worker.channels.sub_batch import EncodedArray, Key, Kind, SubBatch
from headrace.graph.sampler_worker.config import SamplerConfig, Wanted
from headrace.graph.sampler_worker.schedule import SampleTask
from headrace.graph.sampling.feature_gather import FeatureGather
from headrace.graph.sampling.hop import Rule
from headrace.graph.sampling.neighbor_sampler import BatchKey, HeteroSampled, Sampler
from headrace.graph.sampling.remote_scores import RemoteScores
from headrace.graph.schema import EdgeType
from headrace.tracing.task_trace import SubBatchNotes, SubBatchRecorder

_HALVES = ("float16", "bfloat16")

Clock = Callable[[], float]


@dataclass(frozen=True)
class SampledSubBatch:
    """A task with its sampled nodes and edges."""

    job: SampleTask
    out: HeteroSampled
    seconds: float
    notes: SubBatchNotes | None = None
    scores: RemoteScores | None = None


@dataclass(frozen=True)
class _Column:
    """A column of the sub-batches and its dtype there."""

    wanted: Wanted
    info: ColumnInfo
    dtype: str

    @property
    def key(self) -> Key:
        kind: Kind = "seed" if self.wanted.seeds_only else "node"
        return Key(self.wanted.node_type, self.wanted.name, kind, self.dtype)


class SubBatchDraft:
    """A sub-batch whose features are being fetched.

    Attributes:
        shapes: Shapes of the arrays to fill.
        notes: Its trace record, if any.
        num_saved_bytes: How much smaller the filled arrays are for a trainer on another machine.
    """

    def __init__(self, sampled: SampledSubBatch, is_remote: bool) -> None:
        self.shapes: dict[Key, tuple[int, ...]] = {}
        self.notes = sampled.notes
        self.num_saved_bytes = 0
        self._is_remote = is_remote
        self._sampled = sampled
        self._ready: dict[Key, np.ndarray] = {}
        self._ends: dict[Key, tuple[np.ndarray, np.ndarray]] = {}
        self._gathers: dict[Key, tuple[FeatureGather, ColumnInfo]] = {}
        self._encoded: dict[Key, tuple[FeatureGather, ColumnInfo, int]] = {}

    def add(self, key: Key, array: np.ndarray) -> None:
        """Add an available array."""
        self.shapes[key] = array.shape
        self._ready[key] = array

    def add_ends(self, key: Key, row: np.ndarray, col: np.ndarray) -> None:
        """Add an edge index."""
        self.shapes[key] = (2, len(row))
        self._ends[key] = row, col

    def add_gather(
        self, key: Key, gathering: FeatureGather, info: ColumnInfo, num_rows: int
    ) -> None:
        """Add requested rows; a trainer on another machine decodes them."""
        if info.encoding is not None and info.dtype == key.dtype:
            if self._is_remote:
                self._encoded[key] = gathering, info, num_rows
                return
            self.num_saved_bytes += round(num_rows * (info.value_bytes - info.row_bytes))
        self.shapes[key] = (num_rows, *info.shape)
        self._gathers[key] = gathering, info

    def fill(self, arrays: Mapping[Key, np.ndarray]) -> SubBatch:
        """Wait for all features and write them; raise `StoreError` if a store fails."""
        with _working(self.notes):
            for key, array in self._ready.items():
                arrays[key][...] = array
            for key, (row, col) in self._ends.items():
                arrays[key][0], arrays[key][1] = row, col
            for key, (gathering, info) in self._gathers.items():
                _gather(gathering, info, key, arrays[key])
            encoded = [
                EncodedArray(key, (num_rows, *info.shape), info.encoding, gathering.encoded())
                for key, (gathering, info, num_rows) in self._encoded.items()
                if info.encoding is not None
            ]
        job, out = self._sampled.job, self._sampled.out
        return SubBatch(
            job.epoch, job.batch, out.num_sampled_nodes, out.num_sampled_edges, encoded=encoded
        )


class SubBatchBuilder:
    """Builds one sampler's sub-batches; several threads may each work on another.

    `scores` returns the newest scores of remote nodes, None before the first.

    Raises:
        SpecError: The graph lacks a type or a column.
    """

    def __init__(
        self,
        access: GraphView,
        config: SamplerConfig,
        clock: Clock,
        recorder: SubBatchRecorder | None = None,
        scores: Callable[[], RemoteScores | None] = lambda: None,
    ) -> None:
        self._access = access
        self._scores = scores
        self._config = config
        self._clock = clock
        self._recorder = recorder
        self._fanouts = dict(config.fanouts)
        edge_ids = config.edge_ids or config.edge_columns
        self._rule = Rule(
            config.replace,
            config.disjoint,
            edge_ids=edge_ids,
            far=config.far,
            labor=config.labor,
        )
        self._source = access.hops(config.weight, None)
        self._own = threading.local()
        if config.node_type not in access.node_types:
            raise SpecError(
                f"the graph has no node type {config.node_type!r}, the type of the seeds",
                f"it has {', '.join(access.node_types)}",
            )
        wanted = _all_columns(access, config) if config.columns is None else config.columns
        self._columns = [self._column(each) for each in wanted]

    def sample(self, job: SampleTask) -> SampledSubBatch:
        """Sample nodes and edges around a task's seeds."""
        begin = self._clock()
        notes = None
        if self._recorder is not None:
            notes = self._recorder.begin(job.epoch, job.batch, len(job.seeds))
        with _working(notes):
            name = self._config.node_type
            seeds = {name: self._access.to_new(name, job.seeds)}
            key = BatchKey(self._config.seed, job.epoch, job.batch)
            sampler, scores = self._sampler(), self._scores()
            sampler.scores = {} if scores is None else {scores.home: scores}
            out = sampler.sample_hetero(seeds, self._fanouts, key)
            if scores is not None and sampler.home(seeds) != scores.home:
                scores = None
        return SampledSubBatch(job, out, self._clock() - begin, notes, scores)

    def start(self, sampled: SampledSubBatch) -> SubBatchDraft:
        """Request remote features; local ones are read in `SubBatchDraft.fill`."""
        with _working(sampled.notes):
            return self._start(sampled)

    def end(self, draft: SubBatchDraft, num_bytes: int) -> None:
        """Record the end and the size of a sub-batch."""
        if self._recorder is not None and draft.notes is not None:
            self._recorder.end(draft.notes, num_bytes)

    def _start(self, sampled: SampledSubBatch) -> SubBatchDraft:
        draft = SubBatchDraft(sampled, self._config.is_remote)
        out, access = sampled.out, self._access
        repeats = out.tree is not None
        for column in self._columns:
            name = column.wanted.node_type
            num = out.num_sampled_nodes[name][0] if column.wanted.seeds_only else None
            ids = out.node[name][:num]
            gathering = access.gather(name, column.wanted.name, ids, repeats, sampled.scores)
            draft.add_gather(column.key, gathering, column.info, len(ids))
        for name, ids in out.node.items():
            draft.add(Key(name, "n_id", "node", "int64"), access.to_original(name, ids))
            if out.tree is not None:
                draft.add(Key(name, "batch", "tree", "int64"), out.tree[name])
        for edge_type, row in out.row.items():
            key = Key(edge_type, "edge_index", "ends", "int64")
            draft.add_ends(key, row, out.col[edge_type])
            if out.edge is not None:
                self._start_edges(draft, edge_type, out.edge[edge_type])
        return draft

    def _start_edges(self, draft: SubBatchDraft, edge_type: EdgeType, edges: np.ndarray) -> None:
        access, config = self._access, self._config
        if config.edge_ids and access.has_edge_ids(edge_type):
            ids = access.edge_ids(edge_type, edges)
            draft.add(Key(edge_type, "e_id", "edge", "int64"), ids)
        if config.edge_columns:
            for info in access.columns[edge_type].values():
                key = Key(edge_type, info.name, "edge", self._output_dtype(info))
                gathering = access.gather(edge_type, info.name, edges, may_repeat=True)
                draft.add_gather(key, gathering, info, len(edges))

    def _sampler(self) -> Sampler:
        if not hasattr(self._own, "sampler"):
            access = self._access
            self._own.sampler = Sampler(
                self._source,
                access.num_nodes,
                access.edge_types,
                self._rule,
                access.node_offsets,
            )
        sampler: Sampler = self._own.sampler
        return sampler

    def _column(self, wanted: Wanted) -> _Column:
        info = self._access.column(wanted.node_type, wanted.name)
        return _Column(wanted, info, self._output_dtype(info))

    def _output_dtype(self, info: ColumnInfo) -> str:
        """Dtype of a column in sub-batches."""
        is_cast = info.dtype in _HALVES and not self._config.keep_dtype
        return "float32" if is_cast else info.dtype


def _working(notes: SubBatchNotes | None) -> AbstractContextManager[None]:
    return nullcontext() if notes is None else notes.working()


def _all_columns(access: GraphView, config: SamplerConfig) -> list[Wanted]:
    """Features of all nodes, and scalar columns (labels) of the seeds."""
    found = []
    for name in access.node_types:
        for column in access.columns[name].values():
            if column.shape:
                found.append(Wanted(node_type=name, name=column.name))
            elif name == config.node_type:
                found.append(Wanted(node_type=name, name=column.name, seeds_only=True))
    return found


def _gather(gathering: FeatureGather, info: ColumnInfo, key: Key, out: np.ndarray) -> None:
    if info.dtype == key.dtype:
        gathering.into(out)
        return
    rows = np.empty(out.shape, np.uint16 if info.dtype == "bfloat16" else info.dtype)
    gathering.into(rows)
    if info.dtype == "bfloat16":
        # bfloat16 is the upper half of a float32.
        np.left_shift(rows, 16, out=out.view(np.uint32), dtype=np.uint32)
    else:
        out[...] = rows
