"""Train with a function that runs alone, on one machine or on many.

Example:
    >>> import headrace
    >>> def steps(context: headrace.TrainContext) -> int:
    ...     return context.world_size * context.config["steps"]
    >>> headrace.train(steps, config={"steps": 5})
    5
"""

from __future__ import annotations

from headrace.runtime.training_context import TrainContext, train

__all__ = ["TrainContext", "train"]
