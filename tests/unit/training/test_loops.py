"""Loops learn what can be learnt, and count right."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch_geometric.data import Data, HeteroData  # noqa: E402

from headrace.training.loops import (  # noqa: E402
    area_under_curve,
    evaluate,
    evaluate_links,
    train_epoch,
    train_links_epoch,
)
from headrace.training.models import make_model  # noqa: E402


def two_blocks() -> Any:
    """Two complete blocks whose nodes have noisy features and the number of their block."""
    generator = torch.Generator().manual_seed(0)
    ends = [(i, j) for b in (0, 10) for i in range(b, b + 10) for j in range(b, b + 10) if i != j]
    y = torch.arange(20) // 10
    x = torch.randn(20, 4, generator=generator) + 2 * (2 * y[:, None] - 1)
    data = Data(x=x, y=y, edge_index=torch.tensor(ends).T)
    data.batch_size = 12
    return data


def learn(model: Any, step: Any, num_epochs: int = 30) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return [step(optimizer) for _ in range(num_epochs)][-1]


def test_classes_are_learnt_and_only_seeds_count() -> None:
    torch.manual_seed(0)
    data = two_blocks()
    model = make_model("sage", 4, 8, 2, dropout=0.0)
    before = evaluate(model, [data])
    last = learn(model, lambda optimizer: train_epoch(model, [data], optimizer))
    after = evaluate(model, [data, data])
    assert (before.num_samples, after.num_samples) == (12, 24)
    assert last.loss < before.loss
    assert after.accuracy == 1.0


def test_classes_of_a_type() -> None:
    torch.manual_seed(0)
    plain, data = two_blocks(), HeteroData()
    data["paper"].x, data["paper"].y, data["paper"].batch_size = plain.x, plain.y, 12
    data["paper"].n_id = torch.arange(20)
    data["paper", "cites", "paper"].edge_index = plain.edge_index
    model = make_model("rgcn", {"paper": 4}, 8, 2, edge_types=data.edge_types, dropout=0.0)
    learn(model, lambda optimizer: train_epoch(model, [data], optimizer, "paper"))
    assert evaluate(model, [data], "paper").accuracy == 1.0


def test_links_are_learnt() -> None:
    torch.manual_seed(0)
    data = two_blocks()
    negative = torch.stack([torch.arange(10), torch.arange(10, 20)])
    data.edge_label_index = torch.cat([data.edge_index[:, :20], negative], 1)
    data.edge_label = torch.cat([torch.ones(20), torch.zeros(10)])
    model = make_model("gcn", 4, 8, 8, dropout=0.0)
    last = learn(model, lambda optimizer: train_links_epoch(model, [data], optimizer))
    assert last.num_samples == 30
    assert evaluate_links(model, [data]) > 0.9


def test_area_under_curve_is_the_share_of_pairs_in_order() -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randint(0, 5, (40,), generator=generator).float()
    labels = torch.randint(0, 2, (40,), generator=generator).float()
    pairs = [
        1.0 if p > n else 0.5 if p == n else 0.0
        for p in scores[labels == 1].tolist()
        for n in scores[labels == 0].tolist()
    ]
    assert area_under_curve(scores, labels) == pytest.approx(sum(pairs) / len(pairs))
    assert math.isnan(area_under_curve(scores, torch.ones(40)))


def test_no_batches_are_no_samples() -> None:
    epoch = evaluate(make_model("sage", 4, 8, 2), [])
    assert (epoch.num_samples, epoch.accuracy) == (0, 0.0)
