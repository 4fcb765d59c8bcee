"""PyG's loaders over graphs in parts, for training scripts."""

from __future__ import annotations

from headrace.core.errors import MissingExtraError

try:
    import torch_geometric  # noqa: F401
except ImportError:
    raise MissingExtraError("PyG is not installed", "pip install 'headrace[train]'") from None

from headrace.runtime.loading import LinkNeighborLoader, NeighborLoader

__all__ = ["LinkNeighborLoader", "NeighborLoader"]
