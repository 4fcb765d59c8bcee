"""Scores of remote nodes and of feature dimensions, from a model and an explanation graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace.core.errors import SpecError
from headrace.training.remote_sampling.explanation_graph import ExplanationGraph

NUM_EPOCHS = 50
LOSS_THRESHOLD = 0.01
_LEARNING_RATE = 0.01
# Weights of the regularisation of GNNExplainer: sizes and entropies of the masks.
_NODE_SIZE, _NODE_ENTROPY, _FEATURE_SIZE, _FEATURE_ENTROPY = 0.005, 1.0, 1.0, 0.1
_TINY = 1e-15


@dataclass(frozen=True)
class Scores:
    """Scores from 0 to 1.

    Attributes:
        nodes: Of each remote node of the explanation graph.
        features: Of each feature dimension.
    """

    nodes: Tensor
    features: Tensor


ScoreFunction = Callable[[nn.Module, ExplanationGraph], Scores]
"""Scores remote nodes and features with the newest model, which is in evaluation mode."""


def explained(model: nn.Module, graph: ExplanationGraph, seed: int = 0) -> Scores:
    """Train masks of nodes and features that keep the prediction of the partition (DGS).

    The loss is the cross entropy to the mean prediction of the partition's nodes, with the
    regularisation of GNNExplainer.
    """
    # Imported here: scripts import this module for `RemoteSampling` alone.
    from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

    target = graph.predict(model)
    rng = torch.Generator().manual_seed(seed)
    num_remote, num_features = len(graph.remote), graph.x.shape[1]
    nodes = torch.randn(num_remote + 1, generator=rng) * (2 / max(num_remote, 1)) ** 0.5
    features = torch.randn(num_features, generator=rng) * 0.1
    nodes.requires_grad_()
    features.requires_grad_()
    optimizer = torch.optim.Adam([nodes, features], lr=_LEARNING_RATE)
    frozen = [each for each in model.parameters() if each.requires_grad]
    for each in frozen:
        each.requires_grad_(False)
    try:
        for _ in range(NUM_EPOCHS):
            set_masks(model, nodes, graph.edge_index, apply_sigmoid=True)
            out = model(graph.x * features.sigmoid(), graph.edge_index)[0]
            loss = -(target * out.log_softmax(dim=-1)).sum()
            loss = loss + _regularisation(nodes, _NODE_SIZE, _NODE_ENTROPY, torch.sum)
            loss = loss + _regularisation(features, _FEATURE_SIZE, _FEATURE_ENTROPY, torch.mean)
            if loss.item() <= LOSS_THRESHOLD:
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        clear_masks(model)
        for each in frozen:
            each.requires_grad_(True)
    return Scores(nodes.detach()[1:].sigmoid(), features.detach().sigmoid())


def _regularisation(
    mask: Tensor, size: float, entropy: float, total: Callable[[Tensor], Tensor]
) -> Tensor:
    kept = mask.sigmoid()
    doubt = -kept * (kept + _TINY).log() - (1 - kept) * (1 - kept + _TINY).log()
    return size * total(kept) + entropy * doubt.mean()


def random(_model: nn.Module, graph: ExplanationGraph, seed: int = 0) -> Scores:
    """Score nodes and features at random; the same in every round."""
    rng = torch.Generator().manual_seed(seed)
    nodes = torch.rand(len(graph.remote), generator=rng)
    return Scores(nodes, torch.rand(graph.x.shape[1], generator=rng))


@torch.no_grad()
def norms(model: nn.Module, graph: ExplanationGraph) -> Scores:
    """Score features by the norms of the first layer's weights, and nodes by those of its output.

    Raises:
        SpecError: The model has no layer with a weight per feature.
    """
    num_features = graph.x.shape[1]
    found = [each for each in model.parameters() if each.ndim == 2 and num_features in each.shape]
    if not found:
        raise SpecError("no weight of the model belongs to the features", "use other scores")
    weight = found[0] if found[0].shape[1] == num_features else found[0].T
    return Scores(_scaled((graph.x[1:] @ weight.T).norm(dim=1)), _scaled(weight.norm(dim=0)))


def saliency(model: nn.Module, graph: ExplanationGraph) -> Scores:
    """Score by gradient times input of the partition's loss, with one backward pass."""
    x = graph.x.clone().requires_grad_()
    out = model(x, graph.edge_index)[0]
    loss = -(graph.predict(model) * out.log_softmax(dim=-1)).sum()
    (gradient,) = torch.autograd.grad(loss, x)
    effect = (gradient * graph.x).abs()
    return Scores(_scaled(effect[1:].sum(dim=1)), _scaled(effect.sum(dim=0)))


def shuffled(model: nn.Module, graph: ExplanationGraph, seed: int = 0) -> Scores:
    """Explained scores, those of nodes in random order: a placebo to compare with `explained`."""
    scores = explained(model, graph, seed)
    order = torch.randperm(len(scores.nodes), generator=torch.Generator().manual_seed(seed + 1))
    return Scores(scores.nodes[order], scores.features)


def _scaled(values: Tensor) -> Tensor:
    most = values.max() if values.numel() else values.new_tensor(0.0)
    return values / most if most > 0 else torch.ones_like(values)


SCORES: dict[str, ScoreFunction] = {
    "explained": explained,
    "shuffled": shuffled,
    "random": random,
    "norms": norms,
    "saliency": saliency,
}


def compute(score: str | ScoreFunction, model: nn.Module, graph: ExplanationGraph) -> Scores:
    """Compute scores and check them.

    Raises:
        SpecError: A function returned something else than finite scores of the right number.
    """
    function = SCORES[score] if isinstance(score, str) else score
    model.eval()
    scores: Any = function(model, graph)
    if not (isinstance(scores, Scores) and torch.is_tensor(scores.nodes)):
        raise SpecError(f"a score function returned {type(scores).__name__}", "return `Scores`")
    for name, values, count in (
        ("nodes", scores.nodes, len(graph.remote)),
        ("features", scores.features, graph.x.shape[1]),
    ):
        if values.shape != (count,) or not bool(values.isfinite().all()):
            raise SpecError(
                f"scores of {name} have shape {tuple(values.shape)} and must be {count} finite "
                "numbers",
                "return one score per remote node and one per feature",
            )
    nodes, features = (
        values.detach().cpu().float().clamp(0, 1) for values in (scores.nodes, scores.features)
    )
    return Scores(nodes, features)
