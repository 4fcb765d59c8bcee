"""Parts of a full-graph job and the rows between them, from a partitioned graph without a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from headrace.core.full_graph import FullGraphFigures, Rows, TypeRows
from headrace.core.job import Role
from headrace.core.profile import BatchTraffic, Profile, StoreTraffic, TaskTime
from headrace.graph.build.cover_sizes import cover_sizes
from headrace.graph.format.partitioned_graph import PartitionedGraph

_NO_TIME = "bytes of the partitions; computing takes no time, as no full-graph run was measured"


def with_parts(
    profile: Profile | None, graph: PartitionedGraph, trainers: Sequence[int] | None = None
) -> Profile:
    """A profile with the parts of a graph and the rows between them.

    Times and swaps are those of the profile, if it was measured in a full-graph run; otherwise
    computing takes no time.

    Args:
        profile: The profile, if any.
        graph: The graph.
        trainers: Trainer of each partition; by default each is the part of one trainer.
    """
    owners = list(range(graph.num_parts) if trainers is None else trainers)
    rows = {each: cover_sizes(graph, owners, each) for each in graph.edge_types}
    parts = [graph.part(part) for part in range(graph.num_parts)]

    def by_trainer(nums: Iterable[int]) -> tuple[int, ...]:
        found = [0] * (max(owners) + 1)
        for owner, num in zip(owners, nums, strict=True):
            found[owner] += num
        return tuple(found)

    nodes = {each: by_trainer(part.num_nodes(each) for part in parts) for each in graph.node_types}
    counted: dict[str, Any] = {
        "nodes": by_trainer(sum(map(part.num_nodes, graph.node_types)) for part in parts),
        "edges": by_trainer(sum(map(part.num_edges, graph.edge_types)) for part in parts),
        "halo": _nested(np.sum([each.halo for each in rows.values()], axis=0)),
        "cover": _nested(np.sum([each.total for each in rows.values()], axis=0)),
    }
    counted["by_type"] = {
        "/".join(edge_type): TypeRows(
            halo=_nested(each.halo),
            cover=_nested(each.total),
            sources=nodes[edge_type[0]],
            destinations=nodes[edge_type[2]],
        )
        for edge_type, each in rows.items()
        if len(rows) > 1
    }
    if profile is not None and profile.full_graph is not None:
        figures = profile.full_graph.model_copy(update=counted)
        return profile.model_copy(update={"full_graph": figures})
    nothing = {"default": TaskTime(mean=0.0)}
    return Profile(
        note=_NO_TIME,
        task_times=dict.fromkeys((Role.STORE, Role.SAMPLER, Role.TRAINER, Role.SERVER), nothing),
        store_traffic=StoreTraffic(),
        batch_traffic=BatchTraffic(bytes_per_seed=0.0),
        model_bytes=None if profile is None else profile.model_bytes,
        full_graph=FullGraphFigures(**counted),
    )


def _nested(rows: np.ndarray) -> Rows:
    return tuple(map(tuple, rows.tolist()))
