"""Forward passes of groups of rows, one after the other."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch import nn  # noqa: E402
from torch_geometric.nn import GAT, GCN, GCNConv  # noqa: E402

from headrace.training.full_graph.exchange import HaloExchange  # noqa: E402
from headrace.training.full_graph.linear_sums import LinearSum, is_linear  # noqa: E402
from headrace.training.full_graph.row_groups import (  # noqa: E402
    NotDivisibleError,
    RowGroups,
    can_overlap,
)

NUM = 8


class Needed(HaloExchange):
    """Others need two of the rows."""

    def __init__(self) -> None:
        none = np.zeros(0, np.int64)
        super().__init__(NUM, none, none)

    @property
    def sent_rows(self) -> Any:
        """With repetitions, as several trainers need the same."""
        return torch.tensor([5, 2, 5])


@pytest.mark.parametrize("sizes", [(2, 6), (1, 1, 6)])
def test_rows_come_back_in_their_order(sizes: tuple[int, ...]) -> None:
    groups, rows = RowGroups(Needed(), len(sizes) - 1), torch.rand(NUM, 3)
    assert groups.sizes == sizes
    seen = []

    def forward(x: Any, scale: Any, name: str) -> Any:
        seen.append(len(x))
        return x * scale

    found = groups.call(forward, (rows,), {"scale": torch.tensor(2.0), "name": "x"})
    torch.testing.assert_close(found, 2 * rows)
    assert seen == list(sizes)
    assert groups.active is None


@pytest.mark.parametrize("num_bins", [1, 2])
def test_sums_need_the_rows_of_all_groups(num_bins: int) -> None:
    exchange = Needed()
    groups, rows = (
        RowGroups(exchange, num_bins),
        torch.rand(NUM, 3, requires_grad=True, dtype=torch.double),
    )
    edges = torch.randint(0, NUM, (2, 30))
    sums = LinearSum(exchange, edges, None, NUM, False, rows, groups.place, groups.ends)

    def forward(x: Any) -> Any:
        x = groups.add_up(sums, 2 * x).relu_()
        return groups.add_up(sums, x * x)

    def whole(x: Any) -> Any:
        for is_square in (False, True):
            rows = x * x if is_square else 2 * x
            x = torch.zeros(NUM, 3).double().index_add_(0, edges[1], rows[edges[0]])
        return x

    found, expected = groups.call(forward, (rows,), {}), whole(rows)
    torch.testing.assert_close(found, expected)
    (own,) = torch.autograd.grad(found.sin().sum(), rows)
    (theirs,) = torch.autograd.grad(expected.sin().sum(), rows)
    torch.testing.assert_close(own, theirs)


def test_what_an_evaluation_computes_once_serves_training() -> None:
    with torch.inference_mode():
        found = Needed().derive("key", lambda: torch.ones(1))
    assert not found.is_inference()


def test_an_evaluation_has_no_gradients() -> None:
    groups, layer = RowGroups(Needed(), 1), nn.Linear(3, 2)
    with torch.no_grad():
        found = groups.call(layer.forward, (torch.rand(NUM, 3),), {})
    assert not found.requires_grad


def test_groups_compute_in_the_precision_of_the_caller() -> None:
    groups, layer = RowGroups(Needed(), 2), nn.Linear(3, 2)
    seen = set()

    def forward(x: Any) -> Any:
        out = layer(x)
        seen.add((out.dtype, out.is_inference()))
        return out

    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        groups.call(forward, (torch.rand(NUM, 3),), {})
    assert seen == {(torch.bfloat16, True)}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_error_of_a_group_is_that_of_the_model(number: int) -> None:
    groups = RowGroups(Needed(), 2)
    before = threading.active_count()

    def forward(x: Any) -> Any:
        if groups.active == number:
            raise ZeroDivisionError
        return x

    with pytest.raises(ZeroDivisionError):
        groups.call(forward, (torch.rand(NUM, 3),), {})
    assert threading.active_count() == before
    torch.testing.assert_close(
        groups.call(lambda x: x, (torch.ones(NUM, 1),), {}), torch.ones(8, 1)
    )


@pytest.mark.parametrize("number", [0, 1, 2])
def test_groups_with_different_layers_are_not_divisible(number: int) -> None:
    exchange = Needed()
    groups, rows = RowGroups(exchange, 2), torch.rand(NUM, 3, requires_grad=True)
    edges = torch.randint(0, NUM, (2, 30))
    sums = LinearSum(exchange, edges, None, NUM, False, rows, groups.place, groups.ends)

    def forward(x: Any) -> Any:
        times = 2 if groups.active == number else 1
        for _ in range(times):
            x = groups.add_up(sums, 2 * x)
        return x

    with pytest.raises(NotDivisibleError):
        groups.call(forward, (rows,), {})


def test_outputs_without_a_row_per_node_are_not_divisible() -> None:
    with pytest.raises(NotDivisibleError):
        RowGroups(Needed(), 1).call(lambda x: x.sum(0), (torch.rand(NUM, 3),), {})


def test_models_whose_rows_meet_elsewhere_do_not_overlap() -> None:
    assert can_overlap(GCN(3, 4, 2, 2), is_linear)
    assert not can_overlap(GCN(3, 4, 2, 2, norm="BatchNorm"), is_linear)
    assert not can_overlap(GAT(3, 4, 2, 2), is_linear)
    assert not can_overlap(GCNConv(3, 4), is_linear)
    assert not can_overlap(nn.Linear(3, 4), is_linear)
