"""Weights of remote nodes, and the feature dimensions to fetch of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.graph.sampling.hop import LEAST_FAR


@dataclass(frozen=True)
class RemoteScores:
    """How the samplers of one partition draw and fetch nodes of other partitions.

    Attributes:
        home: The partition; its own nodes have weight 1.
        node_type: Node type of the remote nodes.
        weights: Weight of each node of the type by new id, `float32`; `far` without a score.
        far: Mean weight of the scored nodes. Draws at stores use it for all remote nodes.
        column: Feature column that `dims` belongs to.
        dims: Dimensions to fetch, ascending; others are zero. None for all.
    """

    home: int
    node_type: str
    weights: np.ndarray
    far: float
    column: str
    dims: np.ndarray | None

    @classmethod
    def of(
        cls,
        home: int,
        node_type: str,
        num_nodes: int,
        remote: np.ndarray,
        node_scores: np.ndarray,
        column: str,
        feature_scores: np.ndarray,
        features: float,
        least: float,
    ) -> RemoteScores:
        """Turn scores into weights and dimensions.

        Args:
            home: The partition.
            node_type: Node type of the remote nodes.
            num_nodes: Number of nodes of the type.
            remote: New ids of the scored nodes.
            node_scores: Their scores, from 0 to 1.
            column: The feature column.
            feature_scores: Score of each dimension of the column.
            features: Fraction of dimensions to fetch: those with the highest scores.
            least: Weight of a node with score 0.
        """
        scored = (least + (1 - least) * node_scores).astype(np.float32)
        far = min(max(float(scored.mean()), LEAST_FAR), 1.0) if len(scored) else 1.0
        weights = np.full(num_nodes, far, np.float32)
        weights[remote] = scored
        num_dims = max(round(features * len(feature_scores)), 1)
        dims = None
        if num_dims < len(feature_scores):
            dims = np.sort(np.argsort(-feature_scores, kind="stable")[:num_dims])
        return cls(home, node_type, weights, far, column, dims)
