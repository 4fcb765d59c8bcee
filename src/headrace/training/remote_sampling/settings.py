"""Argument `remote` of a loader."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from headrace.core.errors import SpecError
from headrace.training.remote_sampling.scores import SCORES, ScoreFunction


@dataclass(frozen=True)
class RemoteSampling:
    """Sample remote nodes and features by scores of the model in training.

    Every `every` iterations the newest model is sent to the samplers. A process of its own on each
    sampler's machine scores the remote nodes next to the sampler's partition and the feature
    dimensions. Until the next scores, remote nodes are drawn with weights from `least` to 1 by
    their scores, nodes of the partition with weight 1, and only the best dimensions of remote rows
    are fetched; others are zero. Draws at stores use the mean weight. A sampler with a cache
    fetches whole rows.

    Scores arrive while training goes on, so runs are not equal to the last bit. Only homogeneous
    graphs are supported.

    Args:
        model: The model in training, called as `model(x, edge_index)`.
        score: `explained` (DGS), `shuffled` (its placebo), `random`, `norms` of the first layer,
            `saliency`, or a function of the model and an `ExplanationGraph`.
        every: Iterations between two models.
        features: Fraction of the feature dimensions to fetch.
        least: Weight of a node with score 0.
        column: Feature column of the nodes.

    Raises:
        SpecError: An argument is out of range.
    """

    model: nn.Module
    score: str | ScoreFunction = "explained"
    every: int = 30
    features: float = 0.85
    least: float = 0.1
    column: str = "x"

    def __post_init__(self) -> None:
        if isinstance(self.score, str) and self.score not in SCORES:
            raise SpecError(f"there are no scores {self.score!r}", f"use {', '.join(SCORES)}")
        if self.every < 1:
            raise SpecError(f"every is {self.every}", "use a number from 1")
        if not 0 < self.features <= 1:
            raise SpecError(f"features is {self.features}", "use a fraction up to 1")
        if not 0.01 <= self.least <= 1:
            raise SpecError(f"least is {self.least}", "use a number from 0.01 to 1")
