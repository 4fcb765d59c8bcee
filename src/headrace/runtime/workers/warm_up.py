"""Loads compiled kernels in the fork server, so that its forks have them.

The first batch of a new sampler takes 1 to 2 s of CPU time, nearly all to load kernels from numba's
cache.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from headrace.graph.build.partition import PartitionSpec, partition
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.loader.graph_view import PartitionedGraphView
from headrace.graph.sampler_worker.config import SamplerConfig
from headrace.graph.sampler_worker.schedule import SampleTask
from headrace.graph.sampler_worker.sub_batch_builder import SubBatchBuilder
from headrace.graph.sources.resolve import open_source
from headrace.graph.store.service import StoreService
from headrace.graph.store.shard import open_shard
from headrace.rpc.config import RpcLimits

_GRAPH = "generated:nodes=64,edges=256,features=4"
_NUM_SEEDS = 8


def load_kernels() -> None:
    """Sample and serve a tiny graph once."""
    with TemporaryDirectory(prefix="headrace-warm-") as scratch:
        folder = Path(scratch) / "parts"
        wanted = PartitionSpec(shares=(0.25,) * 4, method="hash")
        partition(open_source(_GRAPH, 0), wanted, folder)
        graph = open_graph(folder)
        config = SamplerConfig(
            graph=folder,
            node_type=graph.node_types[0],
            seeds=Path("none"),
            seeds_per_iteration=_NUM_SEEDS,
            batches_per_epoch=1,
            fanouts=tuple((edge_type, (3, 2)) for edge_type in graph.edge_types),
        )
        maker = SubBatchBuilder(PartitionedGraphView(graph), config, time.perf_counter)
        draft = maker.start(maker.sample(SampleTask(0, 0, np.arange(_NUM_SEEDS))))
        draft.fill({key: np.empty(shape, key.dtype) for key, shape in draft.shapes.items()})
        StoreService(open_shard(graph, 0), RpcLimits()).prepare()
