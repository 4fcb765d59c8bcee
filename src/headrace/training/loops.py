"""Training and evaluation loops for node classification and link prediction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch_geometric.data import HeteroData

Batches = Iterable[Any]


@dataclass(frozen=True)
class Epoch:
    """Result of a pass over all batches.

    Attributes:
        num_samples: Number of seeds, or of links with their negatives.
        loss: Mean over samples.
        accuracy: Fraction of correctly classified samples.
    """

    num_samples: int
    loss: float
    accuracy: float


def train_epoch(
    model: nn.Module,
    loader: Batches,
    optimizer: torch.optim.Optimizer,
    node_type: str | None = None,
    device: torch.device | str = "cpu",
) -> Epoch:
    """Train node classification for one pass over all batches.

    Args:
        model: A model of `headrace.training.models`, or one with the same signature.
        loader: Batches with labels `y`, seeds first.
        optimizer: Optimizer of the model's parameters.
        node_type: Node type to classify, in a heterogeneous graph.
        device: Device of the model.
    """
    model.train()
    return _nodes(model, loader, node_type, device, optimizer)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Batches,
    node_type: str | None = None,
    device: torch.device | str = "cpu",
) -> Epoch:
    """Evaluate node classification on all seeds of a loader."""
    model.eval()
    return _nodes(model, loader, node_type, device, None)


def train_links_epoch(
    model: nn.Module,
    loader: Batches,
    optimizer: torch.optim.Optimizer,
    edge_type: tuple[str, str, str] | None = None,
    device: torch.device | str = "cpu",
) -> Epoch:
    """Train link prediction for one pass over all batches.

    The score of a link is the dot product of the embeddings of its ends.

    Args:
        model: Returns an embedding for every node of a batch.
        loader: Batches with `edge_label_index` and `edge_label`.
        optimizer: Optimizer of the model's parameters.
        edge_type: Type of the links, in a heterogeneous graph.
        device: Device of the model.
    """
    model.train()
    scores, labels, loss = _links(model, loader, edge_type, device, optimizer)
    return Epoch(len(labels), loss, _share((scores > 0) == (labels > 0.5)))


@torch.no_grad()
def evaluate_links(
    model: nn.Module,
    loader: Batches,
    edge_type: tuple[str, str, str] | None = None,
    device: torch.device | str = "cpu",
) -> float:
    """Evaluate link prediction: the area under the ROC curve."""
    model.eval()
    scores, labels, _loss = _links(model, loader, edge_type, device, None)
    return area_under_curve(scores, labels)


def area_under_curve(scores: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve; equal scores count half. NaN if all labels are the same."""
    positive, negative = scores[labels > 0.5], scores[labels <= 0.5]
    if not len(positive) or not len(negative):
        return float("nan")
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive, right=False)
    not_above = torch.searchsorted(ordered, positive, right=True)
    wins = (below + not_above).double().sum() / 2
    return float(wins / (len(positive) * len(negative)))


def _nodes(
    model: nn.Module,
    loader: Batches,
    node_type: str | None,
    device: torch.device | str,
    optimizer: torch.optim.Optimizer | None,
) -> Epoch:
    num_samples = num_right = 0
    loss_sum = 0.0
    for batch in loader:
        batch = batch.to(device)
        store = batch if node_type is None else batch[node_type]
        size = store.batch_size
        logits, labels = _embed(model, batch, node_type)[:size], store.y[:size]
        loss = cross_entropy(logits, labels)
        if optimizer is not None:
            _step(optimizer, loss)
        num_samples += size
        num_right += int((logits.argmax(-1) == labels).sum())
        loss_sum += loss.item() * size
    total = max(num_samples, 1)
    return Epoch(num_samples, loss_sum / total, num_right / total)


def _links(
    model: nn.Module,
    loader: Batches,
    edge_type: tuple[str, str, str] | None,
    device: torch.device | str,
    optimizer: torch.optim.Optimizer | None,
) -> tuple[Tensor, Tensor, float]:
    scores, labels, loss_sum = [torch.empty(0)], [torch.empty(0)], 0.0
    for batch in loader:
        batch = batch.to(device)
        store = batch if edge_type is None else batch[edge_type]
        src, dst = store.edge_label_index
        embedded = model(*_inputs(batch))
        left = embedded if edge_type is None else embedded[edge_type[0]]
        right = embedded if edge_type is None else embedded[edge_type[2]]
        score = (left[src] * right[dst]).sum(-1)
        label = store.edge_label.to(score.dtype)
        loss = binary_cross_entropy_with_logits(score, label)
        if optimizer is not None:
            _step(optimizer, loss)
        scores.append(score.detach().cpu())
        labels.append(label.cpu())
        loss_sum += loss.item() * len(label)
    every = torch.cat(labels)
    return torch.cat(scores), every, loss_sum / max(len(every), 1)


def _embed(model: nn.Module, batch: Any, node_type: str | None) -> Tensor:
    out = model(*_inputs(batch))
    embedded: Tensor = out if node_type is None else out[node_type]
    return embedded


def _inputs(batch: Any) -> tuple[Any, ...]:
    if isinstance(batch, HeteroData):
        x = batch.x_dict if any("x" in batch[name] for name in batch.node_types) else {}
        return x, batch.edge_index_dict, batch.n_id_dict
    return batch.x, batch.edge_index


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _share(right: Tensor) -> float:
    return float(right.float().mean()) if len(right) else 0.0
