"""The upper shape of a loader's batches, and a batch of that shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

NUM_BATCHES = 20
DEVIATIONS = 4.0
"""The upper shape is the mean of sampled batches plus so many standard deviations."""

Shape = Mapping[Any, int]
"""Number of nodes or edges by type; the types of a homogeneous graph are `None` and `()`."""


def shape_of(batch: Any) -> dict[Any, int]:
    """Nodes and edges of a batch by type."""
    if not hasattr(batch, "node_types"):
        return {None: int(batch.num_nodes), (): int(batch.num_edges)}
    nodes = {name: int(batch[name].num_nodes) for name in batch.node_types}
    return {**nodes, **{kind: int(batch[kind].num_edges) for kind in batch.edge_types}}


def upper_shape(shapes: Iterable[Shape], deviations: float = DEVIATIONS) -> dict[Any, int]:
    """Mean plus standard deviations of some batches, and no less than the largest of them."""
    rows = list(shapes)
    found = {}
    for name in rows[0]:
        sizes = np.array([row[name] for row in rows], dtype=np.float64)
        spread = float(sizes.std(ddof=1)) if len(sizes) > 1 else 0.0
        found[name] = int(max(sizes.max(), np.ceil(sizes.mean() + deviations * spread)))
    return found


def upper_batch(
    batches: Iterable[Any], num_batches: int = NUM_BATCHES
) -> tuple[Any, dict[Any, int], list[float]]:
    """The largest of some batches, enlarged to the upper shape, that shape, and relative sizes."""
    taken = list(islice(batches, num_batches))
    shapes = [shape_of(batch) for batch in taken]
    # The last batch of an epoch has fewer seeds: its size says nothing of the others'.
    seeds = [seeds_of(batch) for batch in taken]
    full = [i for i, num in enumerate(seeds) if num == max(seeds)]
    upper = upper_shape([shapes[i] for i in full])
    largest = max(full, key=lambda i: sum(shapes[i].values()))
    total = sum(upper.values())
    sizes = [sum(shape.values()) / total for shape in shapes]
    return enlarge(taken[largest], upper), upper, sizes


def seeds_of(batch: Any) -> int:
    """Seeds of a batch; 0 if it does not say."""
    own = getattr(batch, "batch_size", None)
    if own is not None:
        return int(own)
    return max((int(getattr(store, "batch_size", 0)) for store in batch.stores), default=0)


def enlarge(batch: Any, shape: Shape) -> Any:
    """A copy of a batch with more nodes and edges, which repeat those of the batch.

    Seeds stay as they are; added nodes and edges belong to the last hop.
    """
    larger, now = batch.clone(), shape_of(batch)
    added = {kind: shape[kind] - num for kind, num in now.items()}
    if not hasattr(batch, "node_types"):
        _enlarge_store(larger.stores[0], added[None], added[()])
        return larger
    for name in larger.node_types:
        _enlarge_store(larger[name], added[name], 0)
    for kind in larger.edge_types:
        _enlarge_store(larger[kind], 0, added[kind])
    return larger


def _enlarge_store(store: Any, num_nodes: int, num_edges: int) -> None:
    names = [key for key, _ in store.items()]
    is_node = {key: num_nodes > 0 and _is_node(store, key) for key in names}
    is_edge = {key: num_edges > 0 and _is_edge(store, key) for key in names}
    for key, value in list(store.items()):
        if key in ("num_sampled_nodes", "num_sampled_edges"):
            added = num_nodes if key == "num_sampled_nodes" else num_edges
            if added > 0 and len(value):
                store[key] = [*value[:-1], int(value[-1]) + added]
        elif isinstance(value, Tensor) and is_node[key]:
            store[key] = _repeated(value, num_nodes, 0)
        elif isinstance(value, Tensor) and is_edge[key]:
            store[key] = _repeated(value, num_edges, 1 if key == "edge_index" else 0)
        elif key == "num_nodes" and num_nodes > 0:
            store[key] = int(value) + num_nodes


def _is_node(store: Any, key: str) -> bool:
    return hasattr(store, "is_node_attr") and bool(store.is_node_attr(key))


def _is_edge(store: Any, key: str) -> bool:
    return hasattr(store, "is_edge_attr") and bool(store.is_edge_attr(key))


def _repeated(tensor: Tensor, added: int, dim: int) -> Tensor:
    num = tensor.size(dim)
    if not num:
        sizes = list(tensor.shape)
        sizes[dim] = added
        return tensor.new_zeros(sizes)
    return torch.cat([tensor, tensor.index_select(dim, torch.arange(added) % num)], dim)
