"""Sampling by explanation (DGS) and its placebo in the benchmark of bytes and accuracy."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.loader.graph_view import PartitionedGraphView
from headrace.graph.loader.neighbor_loader import NeighborLoader
from headrace.graph.sampling.remote_scores import RemoteScores
from headrace.training.remote_sampling.explanation_graph import build
from headrace.training.remote_sampling.scores import compute
from headrace.training.remote_sampling.settings import RemoteSampling

NODE = "node"


class ScoreGuide:
    """Scores remote nodes and features during a training in one process, as samplers do in a run.

    Attributes:
        cpu_s: CPU time of all explanations.
        num_rounds: Number of explanations of each partition.
        fetched_bytes: Rows of remote nodes that the explanations need once.
    """

    def __init__(
        self, graph: PartitionedGraph, loaders: Sequence[NeighborLoader], score: str
    ) -> None:
        self._settings = RemoteSampling(torch.nn.Identity(), score)
        self._num_nodes = graph.num_nodes_of(NODE)
        self._loaders = loaders
        access = PartitionedGraphView(graph)
        self._graphs = [build(access, part, "x") for part in range(graph.num_parts)]
        self._offsets, self._to_new = graph.offsets(NODE), graph.to_new
        self._scores: dict[int, RemoteScores] = {}
        self.fetched_bytes = sum(4 * each.x[1:].numel() for each in self._graphs)
        self.cpu_s, self.num_rounds = 0.0, 0

    def before_step(self, step: int, model: torch.nn.Module) -> None:
        """Explain the newest model if it is time to."""
        if not step or step % self._settings.every:
            return
        began_s = time.process_time()
        for part, graph in enumerate(self._graphs):
            found = compute(self._settings.score, copy.deepcopy(model), graph)
            self._scores[part] = RemoteScores.of(
                part,
                NODE,
                self._num_nodes,
                graph.remote,
                found.nodes.numpy(),
                "x",
                found.features.numpy(),
                self._settings.features,
                self._settings.least,
            )
        self.cpu_s += time.process_time() - began_s
        self.num_rounds += 1
        for loader in self._loaders:
            assert loader._keyed is not None
            loader._keyed.scores = self._scores

    def fetched(self, part: int, batch: Any) -> float | None:
        """Zero what is not fetched of remote rows; the fetched fraction, None before scores."""
        scores = self._scores.get(part)
        if scores is None:
            return None
        if scores.dims is None:
            return 1.0
        ids = self._to_new(NODE, batch.n_id.numpy())
        is_far = (ids < self._offsets[part]) | (ids >= self._offsets[part + 1])
        missing = np.setdiff1d(np.arange(batch.x.shape[1]), scores.dims)
        batch.x[torch.from_numpy(np.flatnonzero(is_far))[:, None], torch.from_numpy(missing)] = 0
        return float(len(scores.dims) / batch.x.shape[1])
