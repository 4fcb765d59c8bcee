"""Sampler processes for a loader of the script: which loaders get them, and what they are told."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.graph.feeding.config import SamplerConfig, Wanted
from headrace.graph.feeding.feed import Feed, start_feed
from headrace.graph.feeding.scheduling import batches_per_epoch, share_of
from headrace.graph.loading.access import GraphAccess
from headrace.graph.source import EdgeType
from headrace.runtime.context import RunContext

_MAKE_OTHERS = {
    "time_attr": None,
    "subgraph_type": "directional",
    "transform_sampler_output": None,
    "neighbor_sampler": None,
    "directed": True,
    "sampler": None,
    "batch_sampler": None,
}
"""Settings that samplers do not know, and how they are when nobody asks for them."""


def can_feed(access: GraphAccess, settings: Mapping[str, Any], num_seeds: int) -> bool:
    """Whether sampler processes can make a loader's batches.

    Without `shuffle` a script may count on the order of its seeds, which samplers change.

    Args:
        access: The graph.
        settings: Of the loader, by name.
        num_seeds: How many it has.
    """
    if not settings.get("shuffle") or not num_seeds:
        return False
    for name, usual in _MAKE_OTHERS.items():
        value = settings.get(name, usual)
        if getattr(value, "value", value) != usual:  # an enum of PyG, or its text
            return False
    return not any(access.columns[edge_type] for edge_type in access.edge_types)


def num_batches(num_seeds: int, num_samplers: int, settings: Mapping[str, Any]) -> int:
    """Batches of an epoch that samplers make; they may need one more than a single process."""
    counts = [len(range(s, num_seeds, num_samplers)) for s in range(num_samplers)]
    return batches_per_epoch(
        counts, settings.get("batch_size", 1), settings.get("drop_last", False)
    )


def start_samplers(
    run: RunContext,
    access: GraphAccess,
    folder: Path,
    node_type: str,
    seeds: np.ndarray,
    fanouts: Mapping[EdgeType, list[int]],
    num_samplers: int,
    settings: Mapping[str, Any],
) -> Feed:
    """Start a run's samplers for one loader.

    Args:
        run: Says where stores are.
        access: The graph.
        folder: Where it lies.
        node_type: What seeds are.
        seeds: Original ids.
        fanouts: Neighbours per hop.
        num_samplers: How many.
        settings: Of the loader, by name.
    """
    batch_size = settings.get("batch_size", 1)
    # Every n-th, so that each sampler sees a fair choice whatever order the ids have.
    shares = [np.sort(seeds)[s::num_samplers] for s in range(num_samplers)]
    stores = run.stores_of(folder)
    configs = [
        SamplerConfig(
            task=f"sampler {s}",
            machine=run.machine,
            graph=folder,
            stores=stores,
            credentials=run.credentials if stores else None,
            tls=run.tls,
            node_type=node_type,
            seeds=Path("given"),
            share=share_of(batch_size, num_samplers, s),
            batches_per_epoch=num_batches(len(seeds), num_samplers, settings),
            seed=settings.get("seed", 0),
            fanouts=tuple((edge_type, tuple(hops)) for edge_type, hops in fanouts.items()),
            replace=settings.get("replace", False),
            disjoint=settings.get("disjoint", False),
            weight=settings.get("weight_attr"),
            columns=tuple(
                Wanted(node_type=name, name=column)
                for name in access.node_types
                for column in access.columns[name]
            ),
            keep_dtype=settings.get("keep_dtype", False),
            edge_ids=any(access.has_edge_ids(edge_type) for edge_type in access.edge_types),
        )
        for s in range(num_samplers)
    ]
    if run.log is None:
        return start_feed(configs, shares, time.perf_counter)
    with run.log.open("ab") as log:
        return start_feed(configs, shares, time.perf_counter, log)
