"""Negatives of link loaders: whose they are, and when they change."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch_geometric.data import Data, HeteroData  # noqa: E402

from headrace.graph.loader.neighbor_loader import LinkNeighborLoader  # noqa: E402

NUM_NODES = 2000
LINKS = torch.randint(NUM_NODES, (2, 400), generator=torch.Generator().manual_seed(0))
TRAIN, TEST = LINKS[:, :300], LINKS[:, 300:]


def graph() -> Data:
    return Data(edge_index=LINKS, num_nodes=NUM_NODES)


def negatives(loader: Any) -> list[tuple[int, int]]:
    """Pairs of an epoch, in order."""
    pairs: list[tuple[int, int]] = []
    for batch in loader:
        false = batch.edge_label_index[:, batch.edge_label == 0]
        pairs += [tuple(pair) for pair in batch.n_id[false].t().tolist()]
    return pairs


def loader(links: Any, **settings: Any) -> LinkNeighborLoader:
    settings = {"batch_size": 50, "neg_sampling": "binary", **settings}
    return LinkNeighborLoader(graph(), [2], edge_label_index=links, **settings)


def test_a_test_loader_with_the_same_seed_has_other_negatives_than_the_train_loader() -> None:
    train, test = loader(TRAIN, shuffle=True), loader(TEST)
    for _ in range(3):
        trained, tested = negatives(train), negatives(test)
        assert len(trained) == 300
        assert len(tested) == 100
        assert not set(trained) & set(tested)


def test_loaders_of_the_same_links_for_training_and_evaluation_have_other_negatives() -> None:
    assert not set(negatives(loader(TEST, shuffle=True))) & set(negatives(loader(TEST)))


def test_a_loader_that_does_not_shuffle_has_the_same_negatives_in_every_epoch() -> None:
    test = loader(TEST)
    assert negatives(test) == negatives(test)


def test_a_loader_that_shuffles_has_new_negatives_in_every_epoch_and_the_same_in_every_run() -> (
    None
):
    train, again = loader(TRAIN, shuffle=True), loader(TRAIN, shuffle=True)
    first, second = negatives(train), negatives(train)
    assert not set(first) & set(second)
    assert [negatives(again), negatives(again)] == [first, second]


def test_another_seed_has_other_negatives() -> None:
    assert not set(negatives(loader(TEST))) & set(negatives(loader(TEST, seed=1)))


def test_the_same_links_of_another_edge_type_have_other_negatives() -> None:
    data = HeteroData()
    data["a"].num_nodes = NUM_NODES
    edge_types = [("a", name, "a") for name in ("likes", "knows")]
    for edge_type in edge_types:
        data[edge_type].edge_index = LINKS
    found = []
    for edge_type in edge_types:
        batches = LinkNeighborLoader(
            data, [2], edge_label_index=(edge_type, TEST), batch_size=100, neg_sampling="binary"
        )
        (batch,) = batches
        false = batch[edge_type].edge_label_index[:, batch[edge_type].edge_label == 0]
        found.append(batch["a"].n_id[false].tolist())
    assert found[0] != found[1]
