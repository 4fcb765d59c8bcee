"""Reference models built from PyG's layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GAT, GCN, GraphSAGE, RGCNConv

from headrace.core.errors import SpecError

EdgeType = tuple[str, str, str]

_HOMOGENEOUS: dict[str, Callable[..., nn.Module]] = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT}

MODELS = (*_HOMOGENEOUS, "rgcn")
"""Model names of `make_model`."""


def make_model(
    name: str,
    in_channels: int | Mapping[str, int],
    hidden_channels: int,
    out_channels: int,
    num_layers: int = 2,
    dropout: float = 0.5,
    edge_types: Sequence[EdgeType] = (),
    num_nodes: Mapping[str, int] | None = None,
) -> nn.Module:
    """Create a model by name.

    Args:
        name: One of `MODELS`.
        in_channels: Number of node features; for `rgcn` of each node type with features.
        hidden_channels: Size of hidden layers.
        out_channels: Number of classes, or size of an embedding.
        num_layers: Number of layers, equal to a loader's hops.
        dropout: Dropout between layers.
        edge_types: Only for `rgcn`: all edge types.
        num_nodes: Only for `rgcn`: number of nodes of types without features, whose rows are
            learnt.

    Raises:
        SpecError: There is no such model, or arguments are missing.
    """
    if name == "rgcn":
        if isinstance(in_channels, int) or not edge_types:
            raise SpecError(
                "rgcn requires the edge types of the graph",
                "give edge_types, and in_channels by node type",
            )
        return RGCN(
            in_channels, hidden_channels, out_channels, num_layers, dropout, edge_types, num_nodes
        )
    if name not in _HOMOGENEOUS:
        raise SpecError(f"there is no model {name!r}", f"use one of {', '.join(MODELS)}")
    if not isinstance(in_channels, int):
        raise SpecError(f"{name} supports one node type", "use rgcn for a heterogeneous graph")
    made = _HOMOGENEOUS[name](
        in_channels, hidden_channels, num_layers, out_channels, dropout=dropout
    )
    return made


class RGCN(nn.Module):
    """Relational graph convolutions (`RGCNConv`) over all node types; see `make_model`.

    A linear layer projects the features of each type to the same size; nodes without features get a
    learnt row. Inputs and outputs are dictionaries by node type, as in PyG's heterogeneous models.
    """

    def __init__(
        self,
        in_channels: Mapping[str, int],
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        dropout: float,
        edge_types: Sequence[EdgeType],
        num_nodes: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self._edge_types = tuple(edge_types)
        self.inputs = nn.ModuleDict(
            {name: nn.Linear(width, hidden_channels) for name, width in in_channels.items()}
        )
        self.rows = nn.ModuleDict(
            {name: nn.Embedding(num, hidden_channels) for name, num in (num_nodes or {}).items()}
        )
        widths = [hidden_channels] * num_layers + [out_channels]
        self.layers = nn.ModuleList(
            RGCNConv(before, after, len(self._edge_types)) for before, after in pairwise(widths)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x_dict: Mapping[str, Tensor],
        edge_index_dict: Mapping[EdgeType, Tensor],
        n_id_dict: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Embed all nodes of a batch; `n_id_dict` has original ids, for types without features."""
        rows = self._start(x_dict, n_id_dict or {})
        counts = [len(each) for each in rows.values()]
        x = torch.cat(list(rows.values()))
        ends, kinds = self._join(edge_index_dict, _starts(rows), x.device)
        for number in range(len(self.layers)):
            x = self._convolve(number, x, ends, kinds)
        return dict(zip(rows, x.split(counts), strict=True))

    def inference_layers(self) -> list[Callable[..., dict[str, Tensor]]]:
        """The layers one by one, for `headrace.infer`."""

        def first(
            x_dict: Mapping[str, Tensor],
            edge_index_dict: Mapping[EdgeType, Tensor],
            n_id: Mapping[str, Tensor],
        ) -> dict[str, Tensor]:
            return layer(self._start(x_dict, n_id), edge_index_dict, 0)

        def layer(
            x_dict: Mapping[str, Tensor], edge_index_dict: Mapping[EdgeType, Tensor], number: int
        ) -> dict[str, Tensor]:
            x = torch.cat(list(x_dict.values()))
            x = self._convolve(number, x, *self._join(edge_index_dict, _starts(x_dict), x.device))
            counts = [len(rows) for rows in x_dict.values()]
            return dict(zip(x_dict, x.split(counts), strict=True))

        return [first, *(partial(layer, number=n) for n in range(1, len(self.layers)))]

    def _start(
        self, x_dict: Mapping[str, Tensor], n_id_dict: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        rows = {name: self.inputs[name](x) for name, x in x_dict.items() if name in self.inputs}
        for name, ids in n_id_dict.items():
            if name in self.rows and name not in rows:
                rows[name] = self.rows[name](ids)
        return rows

    def _convolve(self, number: int, x: Tensor, ends: Tensor, kinds: Tensor) -> Tensor:
        x = self.layers[number](x, ends, kinds)
        return x if number == len(self.layers) - 1 else self.dropout(x.relu())

    def _join(
        self, edge_index_dict: Mapping[EdgeType, Tensor], starts: Mapping[str, int], device: Any
    ) -> tuple[Tensor, Tensor]:
        ends = [torch.empty(2, 0, dtype=torch.int64, device=device)]
        kinds = [torch.empty(0, dtype=torch.int64, device=device)]
        for number, (src, relation, dst) in enumerate(self._edge_types):
            own = edge_index_dict.get((src, relation, dst))
            if own is not None and src in starts and dst in starts:
                shift = torch.tensor([[starts[src]], [starts[dst]]], device=device)
                ends.append(own + shift)
                kinds.append(torch.full((own.shape[1],), number, device=device))
        return torch.cat(ends, 1), torch.cat(kinds)


def _starts(rows: Mapping[str, Tensor]) -> dict[str, int]:
    """First row of each type in the concatenated tensor."""
    counts = [len(each) for each in rows.values()]
    return dict(zip(rows, [0, *torch.tensor(counts).cumsum(0).tolist()], strict=False))
