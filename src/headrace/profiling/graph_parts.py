"""Parts of a full-graph job and the rows between them, from a partitioned graph without a run."""

from __future__ import annotations

from headrace.core.errors import SpecError
from headrace.core.full_graph import FullGraphFigures
from headrace.core.job import Role
from headrace.core.profile import BatchTraffic, Profile, StoreTraffic, TaskTime
from headrace.graph.build.cover_sizes import cover_sizes
from headrace.graph.format.partitioned_graph import PartitionedGraph

_NO_TIME = "bytes of the partitions; computing takes no time, as no full-graph run was measured"


def with_parts(profile: Profile | None, graph: PartitionedGraph) -> Profile:
    """A profile with the parts of a graph and the rows between them.

    Times and swaps are those of the profile, if it was measured in a full-graph run; otherwise
    computing takes no time.

    Args:
        profile: The profile, if any.
        graph: The graph; each partition is the part of one trainer.

    Raises:
        SpecError: The graph has several types of edges.
    """
    if len(graph.edge_types) != 1:
        raise SpecError(
            f"full-graph jobs are planned for one type of edges, the graph has "
            f"{len(graph.edge_types)}",
            "plan it as a sampled job, and train with `ctx.full_graph()` all the same",
        )
    (edge_type,) = graph.edge_types
    num, parts = graph.num_parts, [graph.part(number) for number in range(graph.num_parts)]
    rows = cover_sizes(graph, range(num), edge_type)
    counted = {
        "nodes": tuple(part.num_nodes(edge_type[2]) for part in parts),
        "edges": tuple(part.num_edges(edge_type) for part in parts),
        "halo": tuple(map(tuple, rows.halo.tolist())),
        "cover": tuple(map(tuple, rows.total.tolist())),
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
