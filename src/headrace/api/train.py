"""Training with a user function, on one machine or distributed.

Example:
    >>> import headrace
    >>> def steps(context: headrace.TrainContext) -> int:
    ...     return context.world_size * context.config["steps"]
    >>> headrace.train(steps, config={"steps": 5})
    5
"""

from __future__ import annotations

from headrace.core.errors import MissingExtraError

try:
    import torch_geometric  # noqa: F401
except ImportError:
    raise MissingExtraError("PyG is not installed", "pip install 'headrace[train]'") from None

from headrace.runtime.trainer.context import TrainContext, train
from headrace.runtime.trainer.loaders import LinkNeighborLoader, NeighborLoader

__all__ = ["LinkNeighborLoader", "NeighborLoader", "TrainContext", "train"]
