"""Traced steps against torch's profiler; batches of the upper shape; replayed allocations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch_geometric.data import Data, HeteroData  # noqa: E402
from torch_geometric.nn import GATConv, GCNConv, RGCNConv, SAGEConv  # noqa: E402

from headrace.core.errors import ValueDependentError  # noqa: E402
from headrace.profiling.step_estimate.batch_shape import (  # noqa: E402
    enlarge,
    shape_of,
    upper_batch,
    upper_shape,
)
from headrace.profiling.step_estimate.measured_step import measured_peak  # noqa: E402
from headrace.profiling.step_estimate.replay import resident_bytes  # noqa: E402
from headrace.profiling.step_estimate.tracer import StepTracer, trace_steps  # noqa: E402

NUM_NODES, NUM_EDGES, NUM_SEEDS = 300, 900, 40
LARGER = 20
HUGE_PAGE_BYTES = 2 << 20


class Net(nn.Module):
    """Two layers, dropout between them, and the rows of a mask."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, batch: Any) -> Tensor:
        more = (batch.edge_type,) if isinstance(self.first, RGCNConv) else ()
        x = torch.dropout(self.first(batch.x, batch.edge_index, *more).relu(), 0.5, self.training)
        out: Tensor = self.second(x, batch.edge_index, *more)[batch.mask]
        return out


NETS: dict[str, Callable[[], nn.Module]] = {
    "sage": lambda: Net(SAGEConv(64, 32), SAGEConv(32, 5)),
    "gcn": lambda: Net(GCNConv(64, 32), GCNConv(32, 5)),
    "gat": lambda: Net(GATConv(64, 32, 2, concat=False), GATConv(32, 5)),
    "max": lambda: Net(SAGEConv(64, 32, aggr="max"), SAGEConv(32, 5, aggr="max")),
    "rgcn": lambda: Net(RGCNConv(64, 32, 3), RGCNConv(32, 5, 3)),
}


@pytest.fixture
def batch() -> Data:
    generator = torch.Generator().manual_seed(0)
    mask = torch.zeros(NUM_NODES, dtype=torch.bool)
    mask[:NUM_SEEDS] = True
    return Data(
        x=torch.rand(NUM_NODES, 64, generator=generator),
        y=torch.randint(5, (NUM_NODES,), generator=generator),
        edge_index=torch.randint(NUM_NODES, (2, NUM_EDGES), generator=generator),
        edge_type=torch.randint(3, (NUM_EDGES,), generator=generator),
        mask=mask,
    )


def step_of(model: nn.Module) -> Callable[[Any], float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(batch: Any) -> float:
        optimizer.zero_grad()
        loss = cross_entropy(model(batch), batch.y[batch.mask])
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


@pytest.mark.parametrize("name", sorted(NETS))
def test_the_traced_peak_is_that_of_the_profiler(name: str, batch: Data) -> None:
    traced = trace_steps(step_of(NETS[name]()), batch)

    def run() -> None:
        step = step_of(NETS[name]())
        for _ in range(3):
            step(batch)

    held = [value for value in batch.to_dict().values() if isinstance(value, Tensor)]
    assert traced.peak_bytes == pytest.approx(measured_peak(run, held), rel=1e-4)
    assert sum(traced.made_of.values()) == traced.peak_bytes
    parameters = sum(p.nbytes for p in NETS[name]().parameters())
    assert traced.made_of["parameters"] == parameters
    # The optimizer also counts its steps.
    assert traced.made_of["optimizer"] == pytest.approx(2 * parameters, rel=0.05)


def test_a_trace_changes_neither_parameters_nor_random_numbers(batch: Data) -> None:
    model = NETS["sage"]()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    state = torch.random.get_rng_state()
    trace_steps(step_of(model), batch)
    assert torch.equal(torch.random.get_rng_state(), state)
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)


def test_counts_are_those_of_the_layers(batch: Data) -> None:
    model = nn.Linear(64, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        model(batch.x).sum().backward()
        optimizer.step()

    counts = trace_steps(step, batch).counts
    # Forward, and gradients of the weight; rows have none.
    assert counts.matmul_flops == 2 * 2 * NUM_NODES * 64 * 5
    gathered = trace_steps(step_of(NETS["sage"]()), batch).counts.gathered_bytes
    assert gathered >= NUM_EDGES * (64 + 32) * 4


class Reads(nn.Module):
    def __init__(self, read: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.read = nn.Linear(64, 5), read

    def forward(self, batch: Any) -> Tensor:
        x: Tensor = self.layer(batch.x)
        self.read(x)
        return x[batch.mask]


@pytest.mark.parametrize(
    "read", [lambda x: x.sum().item(), lambda x: x[x[:, 0] > 0], lambda x: x.nonzero()]
)
def test_shapes_that_depend_on_values_cannot_be_traced(
    read: Callable[[Tensor], Any], batch: Data
) -> None:
    with pytest.raises(ValueDependentError):
        trace_steps(step_of(Reads(read)), batch)


def test_the_upper_batch_has_the_upper_shape(batch: Data) -> None:
    batch.num_sampled_nodes, batch.num_sampled_edges = [NUM_SEEDS, 260], [900]
    larger = enlarge(batch, {None: 350, (): 1000})
    assert shape_of(larger) == {None: 350, (): 1000}
    assert larger.x.shape == (350, 64)
    assert larger.edge_type.shape == (1000,)
    assert (larger.num_sampled_nodes, larger.num_sampled_edges) == ([NUM_SEEDS, 310], [1000])
    assert torch.equal(larger.x[:NUM_NODES], batch.x)
    assert shape_of(batch) == {None: NUM_NODES, (): NUM_EDGES}


def test_typed_batches_are_enlarged_by_type() -> None:
    batch = HeteroData()
    batch["a"].x, batch["b"].x = torch.rand(10, 4), torch.rand(20, 4)
    kind = ("a", "to", "b")
    batch[kind].edge_index = torch.zeros(2, 30, dtype=torch.long)
    larger = enlarge(batch, {"a": 12, "b": 20, kind: 31})
    assert shape_of(larger) == {"a": 12, "b": 20, kind: 31}
    assert larger["a"].x.shape == (12, 4)


def test_the_upper_shape_is_never_below_the_largest_batch() -> None:
    assert upper_shape([{None: 100, (): 10}] * 19 + [{None: 200, (): 10}]) == {None: 200, (): 10}
    upper = upper_shape([{None: 90}, {None: 110}])
    assert upper[None] > 110


def test_the_last_batch_of_an_epoch_does_not_widen_the_upper_shape() -> None:
    def batch_of(num_seeds: int, num_nodes: int) -> Data:
        ends = torch.zeros(2, num_nodes, dtype=torch.long)
        return Data(x=torch.rand(num_nodes, 4), edge_index=ends, batch_size=num_seeds)

    sizes = [(64, 100), (64, 102), (5, 20), (64, 101), (64, 100)]
    batch, upper, ratios = upper_batch(iter([batch_of(*size) for size in sizes]))
    assert upper == upper_shape([{None: n, (): n} for seeds, n in sizes if seeds == 64])
    assert (shape_of(batch), batch.batch_size) == (upper, 64)
    # The replay has batches of all sizes.
    assert ratios == pytest.approx([n / upper[None] for _, n in sizes])


def test_replayed_allocations_take_at_least_the_peak(batch: Data) -> None:
    tracer = StepTracer()
    step = step_of(NETS["gat"]())
    tracer.add_batch(batch)
    with tracer:
        for _ in range(2):
            tracer.next_step()
            step(batch)
    held, events = tracer.allocations()
    assert sum(size for _, size in held) > 0
    # Tensors of 1.5 MB could fit into a huge page that the process has already.
    held, events = ([(number, LARGER * size) for number, size in log] for log in (held, events))
    peak = LARGER * tracer.result().peak_bytes
    # Freed memory is used again, but not all of it: how much depends on where the heap begins.
    allocated = sum(size for _, size in [*held, *events] if size > 0)
    assert peak - HUGE_PAGE_BYTES <= resident_bytes(held, events) < allocated
