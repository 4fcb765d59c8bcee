"""PyG's loaders over graphs in parts, for training scripts.

Example:
    >>> import headrace
    >>> graph = headrace.partition("generated:nodes=1000,edges=5000", "parts", 2, method="hash")
    >>> loader = headrace.NeighborLoader(graph, num_neighbors=[5, 5], batch_size=64)
    >>> next(iter(loader)).batch_size
    64
"""

from __future__ import annotations

from headrace.core.errors import MissingExtraError

try:
    import torch_geometric  # noqa: F401
except ImportError:
    raise MissingExtraError("PyG is not installed", "pip install 'headrace[train]'") from None

from headrace.runtime.loading import LinkNeighborLoader, NeighborLoader

__all__ = ["LinkNeighborLoader", "NeighborLoader"]
