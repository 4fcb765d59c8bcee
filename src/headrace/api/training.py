"""Train with a function that runs alone, on one machine or on many."""

from __future__ import annotations

from headrace.runtime.training_context import TrainContext, train

__all__ = ["TrainContext", "train"]
