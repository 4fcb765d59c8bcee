"""Induced subgraphs of sampled nodes."""

from __future__ import annotations

import dataclasses

import numpy as np

from headrace.graph.sampling.hop import HopRequest, HopSource, Rule
from headrace.graph.sampling.neighbor_sampler import HeteroSampled


def with_all_edges(out: HeteroSampled, source: HopSource, rule: Rule) -> HeteroSampled:
    """Replace the sampled edges by all edges between the batch's nodes.

    Args:
        out: A batch; every node has one row, except repeated seeds, whose first row is used.
        source: Source of neighbours; all neighbours are requested.
        rule: Rule of the sampler; decides whether edge ids are returned.
    """
    rows, cols, edges = {}, {}, {}
    everything = Rule(edge_ids=rule.edge_ids)
    places = {name: np.unique(ids, return_index=True) for name, ids in out.node.items()}
    for edge_type in out.row:
        src, _, dst = edge_type
        known, first = places[src]
        hop = source.hop(HopRequest(edge_type, out.node[dst], -1, 0, everything))
        at = np.searchsorted(known, hop.neighbours)
        inside = at < len(known)
        inside[inside] = known[at[inside]] == hop.neighbours[inside]
        rows[edge_type] = first[at[inside]]
        cols[edge_type] = np.repeat(np.arange(len(out.node[dst])), hop.counts)[inside]
        if rule.edge_ids:
            edges[edge_type] = hop.edges[inside]
    return dataclasses.replace(
        out,
        row=rows,
        col=cols,
        edge=edges if rule.edge_ids else None,
        num_sampled_edges={edge_type: [len(row)] for edge_type, row in rows.items()},
    )
