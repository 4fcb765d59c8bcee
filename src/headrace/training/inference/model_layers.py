"""Split models into layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch_geometric.nn import (
    EdgeConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    LayerNorm,
    SAGEConv,
)
from torch_geometric.nn.models.basic_gnn import BasicGNN

from headrace.core.errors import SpecError
from headrace.training.inference.layer_ops import Gathered, Normalized, Setting, Step, Summed, Tail

GIVE_LAYERS = (
    "give `layers`, functions of (x, edge_index), or add `inference_layers()` to the model"
)

# They aggregate first, which is a product with a sparse matrix.
_SUMMED = (SAGEConv, GINConv)
_SUMS = ("sum", "add", "mean", "max", "min")
_BIPARTITE = (SAGEConv, GINConv, GATConv, GATv2Conv, EdgeConv)

# These need degrees of sources or more than one hop, which a chunk does not contain.
_NON_LOCAL = (
    "APPNP", "ARMAConv", "ChebConv", "FAConv", "GCN2Conv", "GCNConv", "LGConv", "SGConv",
    "SSGConv", "TAGConv",
)  # fmt: skip


@dataclass(frozen=True)
class Layers:
    """A model split into layers.

    Attributes:
        steps: Its layers.
        join: Computes the output from the rows of all layers (jumping knowledge); None if the
            output is that of the last layer.
        needs_rows: Whether nodes must have features.
    """

    steps: tuple[Step, ...]
    join: Callable[[list[Tensor]], Tensor] | None = None
    needs_rows: bool = False


def layers_of(
    model: nn.Module, layers: Sequence[Callable[..., Any]] | None, setting: Setting
) -> Layers:
    """Split a model into layers."""
    own: Any = getattr(model, "inference_layers", None)
    if layers is None and callable(own):
        layers = own()
    if layers is None and isinstance(model, BasicGNN):
        return _basic(model, setting)
    if not layers:
        raise SpecError(f"the layers of {type(model).__name__} are unknown", GIVE_LAYERS)
    for module in model.modules():
        name = type(module).__name__
        if name in _NON_LOCAL and getattr(module, "normalize", True):
            raise SpecError(
                f"{name} needs more of the graph than the neighbours of a node",
                "use PyG's GCN, or normalize=False with edge weights",
            )
    return Layers(tuple(Gathered(layer, nn.Identity(), setting) for layer in layers))


def widest_of(model: nn.Module) -> int:
    """Largest output size of a model's layers, with all heads."""
    widths = [1]
    for module in model.modules():
        channels = getattr(module, "out_channels", getattr(module, "out_features", None))
        heads = getattr(module, "heads", 1)
        if isinstance(channels, int) and isinstance(heads, int):
            widths.append(channels * heads)
    return max(widths)


def _basic(model: Any, setting: Setting) -> Layers:
    if not setting.is_homogeneous:
        raise SpecError(f"{type(model).__name__} supports one node type", GIVE_LAYERS)
    for norm in model.norms:
        is_alone = isinstance(norm, LayerNorm) and norm.mode == "node"
        if model.supports_norm_batch and not isinstance(norm, nn.Identity) and not is_alone:
            raise SpecError(
                f"{type(norm).__name__} normalizes over all nodes at once",
                "use a per-node normalization, such as BatchNorm or LayerNorm with mode 'node'",
            )
    roots: dict[tuple[bool, bool], np.ndarray] = {}
    steps = tuple(
        _step(model, conv, partial(_tail, model, number), setting, roots)
        for number, conv in enumerate(model.convs)
    )
    join = partial(_join, model) if hasattr(model, "jk") else None
    return Layers(steps, join, needs_rows=True)


def _step(
    model: Any, conv: Any, tail: Tail, setting: Setting, roots: dict[tuple[bool, bool], np.ndarray]
) -> Step:
    kind = type(conv)
    if conv.flow != "source_to_target":
        raise SpecError(f"{kind.__name__} has a reversed flow", "reverse the graph's edges")
    is_here = setting.device.type == "cpu"
    if kind is GCNConv:
        return Normalized(conv, tail, setting, roots)
    is_plain = conv.aggr in _SUMS and not getattr(conv, "project", False) and conv.fuse
    if kind in _SUMMED and is_plain and is_here:
        return Summed(conv, tail, setting)
    names = {
        "edge_weight": model.supports_edge_weight,
        "edge_attr": model.supports_edge_attr,
    }
    unknown = {name for name in names if not names[name] and getattr(setting, name) is not None}
    if unknown:
        raise SpecError(f"{type(model).__name__} does not support {unknown.pop()}", "omit it")
    return Gathered(conv, tail, setting, kind in _BIPARTITE)


def _tail(model: Any, number: int, x: Tensor) -> Tensor:
    """The operations of `BasicGNN.forward` after a convolution."""
    is_last = number == model.num_layers - 1
    if is_last and model.jk_mode is None:
        return x
    if model.act is not None and model.act_first:
        x = model.act(x)
    x = model.norms[number](x)
    if model.act is not None and not model.act_first:
        x = model.act(x)
    return model.lin(x) if is_last and model.jk_mode == "last" else x


def _join(model: Any, rows: list[Tensor]) -> Tensor:
    joined: Tensor = model.lin(model.jk(rows))
    return joined
