"""Which steps a model is made of, and models that cannot be taken apart."""

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
    "give `layers`, functions of (x, edge_index), or let the model have `inference_layers()`"
)

# Their sums are those of a sparse matrix, and come before what they do with rows.
_SUMMED = (SAGEConv, GINConv)
_SUMS = ("sum", "add", "mean", "max", "min")
_BIPARTITE = (SAGEConv, GINConv, GATConv, GATv2Conv, EdgeConv)

# These look at degrees of sources or further than one hop, which a chunk does not show.
_FARSIGHTED = (
    "APPNP", "ARMAConv", "ChebConv", "FAConv", "GCN2Conv", "GCNConv", "LGConv", "SGConv",
    "SSGConv", "TAGConv",
)  # fmt: skip


@dataclass(frozen=True)
class Layers:
    """A model, taken apart.

    Attributes:
        steps: Its layers.
        join: Makes the output of the rows of all layers (jumping knowledge); none if the output is
            the rows of the last one.
        needs_rows: Whether nodes must have features.
    """

    steps: tuple[Step, ...]
    join: Callable[[list[Tensor]], Tensor] | None = None
    needs_rows: bool = False


def layers_of(
    model: nn.Module, layers: Sequence[Callable[..., Any]] | None, setting: Setting
) -> Layers:
    """Take a model apart.

    Args:
        model: PyG's `GraphSAGE`, `GCN`, `GAT`, `GIN`, `PNA` or `EdgeCNN`, or any other.
        layers: Its layers; none to ask the model.
        setting: Of the inference.

    Raises:
        SpecError: It cannot be computed layer by layer, or nobody says how.
    """
    own: Any = getattr(model, "inference_layers", None)
    if layers is None and callable(own):
        layers = own()
    if layers is None and isinstance(model, BasicGNN):
        return _basic(model, setting)
    if not layers:
        raise SpecError(f"nobody says what the layers of {type(model).__name__} are", GIVE_LAYERS)
    for module in model.modules():
        name = type(module).__name__
        if name in _FARSIGHTED and getattr(module, "normalize", True):
            raise SpecError(
                f"{name} needs more of the graph than the neighbours of a node",
                "use PyG's own GCN, or normalize=False with weights of edges",
            )
    return Layers(tuple(Gathered(layer, nn.Identity(), setting) for layer in layers))


def widest_of(model: nn.Module) -> int:
    """Numbers per node that any layer of a model gives, heads side by side."""
    widths = [1]
    for module in model.modules():
        channels = getattr(module, "out_channels", getattr(module, "out_features", None))
        heads = getattr(module, "heads", 1)
        if isinstance(channels, int) and isinstance(heads, int):
            widths.append(channels * heads)
    return max(widths)


def _basic(model: Any, setting: Setting) -> Layers:
    if not setting.is_homogeneous:
        raise SpecError(f"{type(model).__name__} knows one type of nodes", GIVE_LAYERS)
    for norm in model.norms:
        is_alone = isinstance(norm, LayerNorm) and norm.mode == "node"
        if model.supports_norm_batch and not isinstance(norm, nn.Identity) and not is_alone:
            raise SpecError(
                f"{type(norm).__name__} looks at all nodes at once",
                "use one that knows a node alone, as BatchNorm or LayerNorm of mode 'node'",
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
        raise SpecError(f"{kind.__name__} sends against the edges", "turn the edges of the graph")
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
        raise SpecError(f"{type(model).__name__} takes no {unknown.pop()}", "leave it out")
    return Gathered(conv, tail, setting, kind in _BIPARTITE)


def _tail(model: Any, number: int, x: Tensor) -> Tensor:
    """What `BasicGNN.forward` does after a convolution."""
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
