"""Models that cannot train on parts of a graph, refused by name."""

from __future__ import annotations

from types import CodeType
from typing import Any

from torch import nn
from torch_geometric.nn import LayerNorm, MessagePassing

from headrace.core.errors import SpecError

_GLOBAL_NORMS = (
    "DiffGroupNorm", "GraphNorm", "GraphSizeNorm", "HeteroBatchNorm", "InstanceNorm",
    "InstanceNorm1d", "MeanSubtractionNorm", "PairNorm",
)  # fmt: skip

_LAYERS = {
    "ChebConv": "the degrees of sources",
    "ClusterGCNConv": "the degrees of sources",
    "DirGNNConv": "out-edges",
    "DynamicEdgeConv": "neighbours among all nodes",
    "GPSConv": "attention among all nodes",
    "GravNetConv": "neighbours among all nodes",
    "HANConv": "a mean over all nodes",
    "HGTConv": "the rows of all node types in one tensor",
    "HypergraphConv": "out-edges",
    "LINKX": "a weight per node",
    "PANConv": "paths of several edges",
    "SuperGATConv": "negative samples among all nodes",
    "WLConv": "hashes of all nodes",
    "WLConvContinuous": "the degrees of sources",
    "XConv": "neighbours among all nodes",
}
"""PyG's layers that need more than rows of neighbours."""

_PACKAGES = ("torch_geometric.nn.pool", "torch_geometric.nn.unpool", "torch_geometric.nn.attention")

_FUNCTIONS = frozenset({
    "dropout_node", "get_laplacian", "global_add_pool", "global_max_pool", "global_mean_pool",
    "knn_graph", "radius_graph", "to_dense_adj", "to_dense_batch", "to_undirected",
})  # fmt: skip

_REMEDY = "use another layer, or train with samples (`ctx.loader`)"


def check_model(model: nn.Module) -> None:
    """Raise `SpecError` if a part of a model needs the whole graph in one process."""
    aggregations = {
        id(each)
        for module in model.modules()
        if isinstance(module, MessagePassing)
        for each in module.modules()
    }
    for path, module in model.named_modules():
        kind = type(module)
        problem = _problem(module, id(module) in aggregations)
        if problem:
            name = f"{kind.__name__} ({path})" if path else kind.__name__
            raise SpecError(f"{name} cannot train on parts of a graph: {problem[0]}", problem[1])


def _problem(module: nn.Module, is_in_layer: bool) -> tuple[str, str] | None:
    kind = type(module)
    name, package = kind.__name__, kind.__module__
    if package.startswith("torch._dynamo"):
        return "it is compiled, which skips the exchange", "omit torch.compile"
    if package.startswith("torch.jit"):
        return "it is a TorchScript module", "use the Python module"
    if isinstance(module, LayerNorm) and module.mode == "graph":
        return "it normalises over all nodes at once", "use LayerNorm with mode='node'"
    if name in _GLOBAL_NORMS:
        return "it normalises over all nodes at once", "use BatchNorm, or LayerNorm(mode='node')"
    if name in _LAYERS:
        return f"it needs {_LAYERS[name]}", _REMEDY
    if package.startswith(_PACKAGES):
        return "it needs all nodes of the graph at once", _REMEDY
    if package.startswith("torch_geometric.nn.aggr") and not is_in_layer:
        return "outside of a layer it aggregates all nodes of the graph", _REMEDY
    if isinstance(module, MessagePassing):
        return _problem_of_layer(module)
    found = sorted(_FUNCTIONS & _names(module))
    return (f"it calls {found[0]}, which needs the whole graph", _REMEDY) if found else None


def _problem_of_layer(layer: Any) -> tuple[str, str] | None:
    if layer.flow != "source_to_target":
        return "its flow is target_to_source", "reverse the edges, and use the default flow"
    if layer.decomposed_layers != 1:
        return "its features are decomposed", "omit decomposed_layers"
    if layer.explain:
        return "it explains", "set explain to None"
    if any(getattr(layer, name, None) is not None for name in ("_cached_edge_index", "_cached_x")):
        return "it has cached another graph", "call reset_parameters(), or make it again"
    if type(layer).__module__.startswith("torch_geometric.nn.conv.cugraph"):
        return "it needs all edges in one process", _REMEDY
    lifted = set(lifted_names(layer._user_args)) & set(layer._user_args)
    if lifted:
        return f"it uses {lifted.pop()} both by edge and by node", "rename one of them"
    return None


def lifted_names(arguments: list[str]) -> list[str]:
    """Arguments of a message that a layer collects from the sources of edges."""
    return sorted({name[:-2] for name in arguments if name.endswith("_j")})


def code_of(module: nn.Module) -> CodeType | None:
    """Code of a module's `forward`, if it is a Python function."""
    return getattr(type(module).forward, "__code__", None)


def _names(module: nn.Module) -> set[str]:
    code = code_of(module)
    return set() if code is None else set(code.co_names)
