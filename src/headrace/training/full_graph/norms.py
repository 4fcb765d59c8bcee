"""Normalisations that need more than a trainer's own nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.utils import add_remaining_self_loops, scatter

from headrace.core.errors import SpecError
from headrace.training.full_graph.exchange import HaloExchange, sum_over_group


def halo_gcn_norm(
    exchange: HaloExchange,
    local: Callable[[Tensor], Tensor],
    edge_index: Tensor,
    edge_weight: Tensor | None = None,
    num_nodes: int | None = None,
    improved: bool = False,
    add_self_loops: bool = True,
    flow: str = "source_to_target",
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """PyG's `gcn_norm`, with degrees of halo nodes from the trainers that own them.

    They are exchanged once for the edges of the batch, and in every call for others. `local`
    converts edges so that halo rows follow own rows; other arguments are those of `gcn_norm`.
    """
    num_own = exchange.num_own
    if num_nodes not in (None, num_own):
        raise SpecError(
            f"gcn_norm was called for {num_nodes} nodes, this trainer has {num_own}",
            "pass the batch of `ctx.full_graph()` to the prepared model",
        )

    def normalise() -> tuple[Tensor, Tensor]:
        edges, weights = edge_index, edge_weight
        if add_self_loops:
            fill = 2.0 if improved else 1.0
            edges, weights = add_remaining_self_loops(edges, weights, fill, num_own)
        if weights is None:
            weights = torch.ones(edges.shape[1], dtype=dtype, device=edges.device)
        source, destination = local(edges)
        degrees = scatter(weights, destination, 0, num_own, reduce="sum")
        roots = degrees.pow(-0.5)
        roots = exchange.extend(roots.masked_fill(roots == float("inf"), 0), is_exact=True)
        return edges, roots[source] * weights * roots[destination]

    given = [each for each in (edge_index, edge_weight) if each is not None]
    if not all(exchange.is_kept(each) and not each.requires_grad for each in given):
        return normalise()
    key = (*((id(each), each._version) for each in given), improved, add_self_loops, dtype)
    found: tuple[Tensor, Tensor] = exchange.derive(key, normalise)
    for each in found:
        exchange.keep(each)
    return found


class BatchStatistics:
    """Forward of a batch normalisation in training: statistics of all trainers' nodes."""

    def __init__(self, norm: _BatchNorm, group: Any) -> None:
        self._norm, self._group = norm, group

    def __call__(self, rows: Tensor) -> Tensor:
        """Normalise rows; a collective call in training."""
        norm = self._norm
        if not norm.training and norm.running_mean is not None:
            return type(norm).forward(norm, rows)
        dims = [0, *range(2, rows.dim())]
        shape = [1, -1, *[1] * (rows.dim() - 2)]
        ones = rows.new_tensor([rows.numel() / rows.shape[1]], dtype=torch.float64)
        num = float(sum_over_group(ones, self._group))
        mean = sum_over_group(rows.sum(dims), self._group) / num
        centred = rows - mean.view(shape)
        variance = sum_over_group((centred * centred).sum(dims), self._group) / num
        self._track(mean.detach(), variance.detach() * (num / max(num - 1, 1)))
        scaled = centred * torch.rsqrt(variance + norm.eps).view(shape)
        if not norm.affine:
            return scaled
        return scaled * norm.weight.view(shape) + norm.bias.view(shape)

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        norm = self._norm
        if not norm.training or norm.running_mean is None or norm.running_var is None:
            return
        momentum = norm.momentum
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1.0 / float(norm.num_batches_tracked)
        norm.running_mean.lerp_(mean, momentum or 0.0)
        norm.running_var.lerp_(variance, momentum or 0.0)
