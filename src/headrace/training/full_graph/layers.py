"""Makes the layers of a PyG model exchange halo rows.

A batch has the rows of a trainer's own nodes. Edges refer to halo rows behind them, which only a
layer has: `propagate` and `edge_updater` append them to the tensors that messages collect from
sources. All other computations of a model are on its own rows, so self-loops and bipartite
layers work unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import is_sparse

from headrace.core.errors import SpecError
from headrace.graph.schema import EdgeType
from headrace.training.full_graph.aggregation import add_up
from headrace.training.full_graph.assumed import is_assumed
from headrace.training.full_graph.bins import Bins, in_bins
from headrace.training.full_graph.exchange import HaloExchange, scale_gradient
from headrace.training.full_graph.linear_sums import is_linear
from headrace.training.full_graph.norms import BatchStatistics, halo_gcn_norm
from headrace.training.full_graph.refusals import check_model, code_of, lifted_names
from headrace.training.full_graph.row_groups import (
    NUM_BINS,
    NotDivisibleError,
    RowGroups,
    can_overlap,
)
from headrace.training.full_graph.swap import SwapPolicy

PASS_BATCH = "pass the batch of `ctx.full_graph()` to the prepared model"


@dataclass(frozen=True)
class Halo:
    """Halo of the edges that a layer gets.

    Attributes:
        exchange: Exchange of the sources' rows.
        num_destinations: Nodes of this trainer that edges may end at.
        shift: Number of the first halo row in edges, less the number of own sources.
        num_edges: Edges of each halo row, if nodes of all types are in one row.
    """

    exchange: HaloExchange
    num_destinations: int
    shift: int = 0
    num_edges: Tensor | None = None
    _local: dict[int, Tensor] = field(default_factory=dict)

    def local(self, edge_index: Tensor) -> Tensor:
        """Edges whose halo rows follow the own sources."""
        if self.num_edges is not None:
            self._check_order(edge_index, self.num_edges)
        if not self.shift:
            return edge_index
        is_kept = self.exchange.is_kept(edge_index)
        if is_kept and id(edge_index) in self._local:
            return self._local[id(edge_index)]
        source, destination = edge_index
        source = torch.where(source < self.exchange.num_own, source, source - self.shift)
        found = torch.stack([source, destination])
        if is_kept:
            self._local[id(edge_index)] = found
        return found

    def _check_order(self, edge_index: Tensor, num_edges: Tensor) -> None:
        behind = edge_index[0] - self.exchange.num_own
        found = torch.bincount(behind[behind >= 0], minlength=len(num_edges))
        if len(found) > len(num_edges) or bool((found > num_edges.to(found.device)).any()):
            raise SpecError(
                "a layer gets the nodes of all types in one row, not in the batch's order of types",
                "concatenate the rows of all types in the order of `batch.node_types`",
            )


class Halos:
    """Halos of all edge types.

    Args:
        by_type: Halo of each edge type.
        join: Makes the halo of nodes of all types in one row; a collective call.
        group: Process group of the trainers; None for a single process.
        policy: How rows are sent; as they are if not given.
        num_bins: Into how many bins of nodes a layer's messages are divided.
    """

    def __init__(
        self,
        by_type: Mapping[EdgeType, Halo],
        join: Callable[[], Halo],
        group: Any = None,
        policy: SwapPolicy | None = None,
        num_bins: int = 1,
    ) -> None:
        self.by_type, self.group = dict(by_type), group
        self.policy, self.num_bins = policy or SwapPolicy(), num_bins
        self.groups: RowGroups | None = None
        self.edge_lengths: set[int] = set()
        self._join = join
        self._joined: Halo | None = None
        self._edges: dict[int, Halo] = {}

    @property
    def active_groups(self) -> RowGroups | None:
        """Groups of rows that a model computes one after the other, while it does."""
        return self.groups if self.groups is not None and self.groups.active is not None else None

    def keep(self, edge_type: EdgeType, edge_index: Tensor, columns: Sequence[Tensor]) -> None:
        """Declare the tensors of a batch; those of nodes are of the source type."""
        halo = self.by_type[edge_type]
        for tensor in (edge_index, *columns):
            halo.exchange.keep(tensor)
        self.edge_lengths |= {len(edge_index), edge_index.shape[1]}
        self._edges[id(edge_index)] = halo

    def find(self, edge_index: Tensor, path: str) -> Halo:
        """Halo of a layer's edges: by the tensor, else by the layer's place in the model.

        A layer without an edge type gets the nodes of all types in one row.
        """
        if len(self.by_type) == 1:
            return next(iter(self.by_type.values()))
        if id(edge_index) in self._edges:
            return self._edges[id(edge_index)]
        places = set(path.split("."))
        for edge_type, halo in self.by_type.items():
            if places & _keys(edge_type):
                return halo
        if self._joined is None:
            self._joined = self._join()
        return self._joined


def _keys(edge_type: EdgeType) -> set[str]:
    """Names of a layer of one edge type in HeteroConv and to_hetero."""
    plain = "__".join(edge_type)
    for letter in " -:":
        plain = plain.replace(letter, "_")
    return {plain, f"<{'___'.join(edge_type)}>".replace(".", "#")}


def wrap_layers(
    model: nn.Module, halos: Halos, loss_scale: float = 1.0, overlaps: bool = False
) -> None:
    """Make a model compute on the parts of all trainers what it computes on the whole graph.

    Args:
        model: The model, before it is wrapped for data-parallel training.
        halos: Exchanges of the batch that it will get.
        loss_scale: Factor of the gradients of its output.
        overlaps: Whether to compute the rows that others need first, if the model allows it.

    Raises:
        SpecError: A part of the model cannot work on parts of a graph.
    """
    check_model(model)
    if getattr(vars(model).get("forward"), "is_in_groups", False):
        # Of an earlier call.
        del model.forward
    for path, module in _modules(model):
        if isinstance(module, MessagePassing):
            _wrap(module, "propagate", module._user_args, halos, path)
            _wrap(module, "edge_updater", module._edge_user_args, halos, path)
        elif issubclass(type(module), _BatchNorm) and halos.group is not None:
            module.forward = BatchStatistics(module, halos.group)
        code = code_of(module)
        if code is not None and "gcn_norm" in code.co_names:
            _replace_gcn_norm(module, halos, path)
    halos.groups = _groups_of(model, halos) if overlaps else None
    if halos.groups is not None:
        _call_in_groups(model, halos)
    for hooks, kind in (
        (model._forward_hooks, _ScaledOutput),
        (model._forward_pre_hooks, _BeginningStep),
    ):
        for number in [number for number, hook in hooks.items() if isinstance(hook, kind)]:
            del hooks[number]
    model.register_forward_pre_hook(_BeginningStep(halos.policy))
    if loss_scale != 1.0:
        model.register_forward_hook(_ScaledOutput(loss_scale))


def _groups_of(model: nn.Module, halos: Halos) -> RowGroups | None:
    """Groups of rows, if all trainers can divide them; a collective call."""
    if halos.group is None or len(halos.by_type) > 1 or halos.policy.parallelism == "features":
        return None
    if is_assumed(halos.group):
        # A trace follows one thread.
        return None
    (halo,) = halos.by_type.values()
    num_own = halo.exchange.num_own
    groups = RowGroups(halo.exchange, NUM_BINS)
    can = min(groups.sizes) > 0 and halo.num_destinations == num_own
    # A tensor with as many rows as there are nodes is divided: not edges.
    can = can and num_own not in halos.edge_lengths
    votes = torch.tensor(int(can and can_overlap(model, is_linear)))
    dist.all_reduce(votes, dist.ReduceOp.MIN, group=halos.group)
    return groups if int(votes) else None


def _call_in_groups(model: nn.Module, halos: Halos) -> None:
    forward: Callable[..., Any] = model.forward

    def in_groups(*args: Any, **given: Any) -> Any:
        groups, state = halos.groups, torch.get_rng_state()
        if groups is None:
            return forward(*args, **given)
        try:
            return groups.call(forward, args, given)
        except NotDivisibleError:
            # It depends on the model alone: the same for all trainers, in the first call.
            halos.groups = None
        torch.set_rng_state(state)
        halos.policy.begin(halos.policy.is_training)
        return forward(*args, **given)

    in_groups.is_in_groups = True  # type: ignore[attr-defined]
    model.forward = in_groups


@dataclass(frozen=True)
class _BeginningStep:
    """Hook that tells the swaps that a forward pass begins."""

    policy: SwapPolicy

    def __call__(self, model: nn.Module, given: Any) -> None:
        self.policy.begin(model.training and torch.is_grad_enabled())


@dataclass(frozen=True)
class _ScaledOutput:
    """Hook that scales the gradients of a model's output."""

    factor: float

    def __call__(self, model: nn.Module, given: Any, out: Any) -> Any:
        return _scaled(out, self.factor)


def _modules(model: nn.Module) -> list[tuple[str, Any]]:
    return list(model.named_modules())


def _wrap(layer: Any, method: str, arguments: list[str], halos: Halos, path: str) -> None:
    # Of the class: a second call replaces what the first has set.
    inner: Callable[..., Tensor] = getattr(type(layer), method).__get__(layer)
    names, name_of_layer = lifted_names(arguments), f"{type(layer).__name__} ({path})"
    lifted = {name[:-2]: layer.node_dim for name in arguments if name.endswith(("_i", "_j"))}
    may_add_up, is_by_edge = method == "propagate", method == "edge_updater"

    def with_halo(edge_index: Any, size: Any = None, **given: Any) -> Tensor:
        if not isinstance(edge_index, Tensor) or is_sparse(edge_index):
            raise SpecError(
                f"{name_of_layer} got a sparse matrix instead of edge_index", PASS_BATCH
            )
        halo = halos.find(edge_index, path)
        exchange, edges = halo.exchange, halo.local(edge_index)
        num = (exchange.num_own, halo.num_destinations)
        groups = halos.active_groups
        rows = num if groups is None else (groups.sizes[groups.active or 0],) * 2
        if size is not None:
            _check(name_of_layer, size[0], rows[0])
            _check(name_of_layer, size[1], rows[1])
        pairs = {}
        for name in names:
            value = given.get(name)
            own, destination = value if isinstance(value, tuple | list) else (value, value)
            if isinstance(own, Tensor):
                _check(name_of_layer, own.shape[layer.node_dim], rows[0])
                pairs[name] = own, destination
        if may_add_up and is_linear(layer):
            sums = add_up(layer, exchange, edge_index, edges, num[1], given, groups)
            if sums is not None:
                return sums
        if groups is not None:
            raise NotDivisibleError
        for name, (own, destination) in pairs.items():
            given[name] = exchange.extend(own, layer.node_dim), destination
        num_sources = num[0] + exchange.num_halo
        if halos.num_bins > 1 and edges.shape[1] and torch.is_grad_enabled():
            bins = _bins_of(halos.num_bins, exchange, edge_index, edges, num[1])
            dim = None if is_by_edge else layer.node_dim
            found = in_bins(inner, bins, edges, num_sources, given, lifted, dim)
            if found is not None:
                return found
        return inner(edges, size=(num_sources, num[1]), **given)

    setattr(layer, method, with_halo)


def _bins_of(
    num: int, exchange: HaloExchange, edge_index: Tensor, edges: Tensor, num_destinations: int
) -> Bins:
    def divide() -> Bins:
        return Bins.of_edges(edges, num_destinations, num)

    if not exchange.is_kept(edge_index):
        return divide()
    key = ("bins", id(edge_index), edge_index._version, num_destinations)
    bins: Bins = exchange.derive(key, divide)
    return bins


def _check(layer: str, num_rows: int | None, num_own: int) -> None:
    if num_rows not in (None, num_own):
        raise SpecError(f"{layer} got {num_rows} nodes, this trainer has {num_own}", PASS_BATCH)


def _replace_gcn_norm(module: Any, halos: Halos, path: str) -> None:
    """Let `forward` of a module call another `gcn_norm`: a copy with other globals."""
    forward: Any = type(module).forward
    if forward.__globals__.get("gcn_norm") is not gcn_norm:
        return

    def norm(edge_index: Tensor, *given: Any, **settings: Any) -> Any:
        halo = halos.find(edge_index, path)
        if halos.active_groups is not None:
            # Of a group; the edges are those of all rows.
            given = (*given[:1], *(None for _ in given[1:2]), *given[2:])
            settings |= {"num_nodes": None} if "num_nodes" in settings else {}
        return halo_gcn_norm(halo.exchange, halo.local, edge_index, *given, **settings)

    copy = FunctionType(
        forward.__code__,
        {**forward.__globals__, "gcn_norm": norm},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    copy.__kwdefaults__ = forward.__kwdefaults__
    module.forward = copy.__get__(module)


def _scaled(out: Any, factor: float) -> Any:
    if isinstance(out, Tensor):
        return scale_gradient(out, factor) if out.requires_grad else out
    if isinstance(out, Mapping):
        return {name: _scaled(each, factor) for name, each in out.items()}
    if isinstance(out, tuple | list):
        return type(out)(_scaled(each, factor) for each in out)
    return out
