"""Inference over all nodes and export of model parameters.

Example:
    >>> import headrace
    >>> from torch_geometric.nn import GraphSAGE
    >>> graph = headrace.partition("generated:nodes=1000,edges=5000", "parts", 2, method="hash")
    >>> model = GraphSAGE(128, 16, num_layers=2, out_channels=4)
    >>> headrace.infer(model, graph, "output").num_nodes
    {'node': 1000}
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import MissingExtraError, SpecError

try:
    import torch_geometric  # noqa: F401
except ImportError:
    raise MissingExtraError("PyG is not installed", "pip install 'headrace[train]'") from None

from headrace.runtime.run_dir.run_dir import find_run, runs_folder
from headrace.training.checkpoint_files import newest_whole
from headrace.training.export import load_weights, save_weights
from headrace.training.inference.layerwise import MEMORY_BYTES, WRITABLE, Inference, infer
from headrace.training.models import make_model

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "MEMORY_BYTES",
    "WRITABLE",
    "Inference",
    "export",
    "find_weights",
    "infer",
    "load_model",
    "load_weights",
]

FUNCTION = "make_model"
"""Default name of the function that creates the model in a script."""

# Weights of shape (output size, input size), by model.
_WEIGHT_OF = {"sage": "lin_l.weight", "gcn": "lin.weight", "gat": "lin.weight"}


def find_weights(wanted: str, runs: Path | None = None) -> Path:
    """Find the parameters of a model: a file, or a run's directory, id, id prefix, or `latest`."""
    path = Path(wanted)
    if path.is_file():
        return path
    if path.suffix:
        raise SpecError(f"the file {path} does not exist", "name a best.pt, a checkpoint or a run")
    run = find_run(runs_folder(runs), wanted)
    if run.best.is_file():
        return run.best
    newest = newest_whole(run.checkpoints)
    if newest is None:
        raise SpecError(f"the run {run.run_id} saved no model", "call ctx.keep_best in its script")
    return newest.path


def export(
    source: str | os.PathLike[str] | Mapping[str, Any] | nn.Module,
    path: str | os.PathLike[str],
    runs: Path | None = None,
) -> dict[str, Tensor]:
    """Write the parameters of a model to a file that can be read without headrace.

    Args:
        source: A model, its `state_dict`, a file of one, a checkpoint, or a run.
        path: `model.safetensors`, or `model.pt` for a `state_dict` that `torch.load` reads.
        runs: Directory of all runs.

    Returns:
        The written `state_dict`.

    Raises:
        SpecError: The source does not exist or contains no parameters.
        MissingExtraError: safetensors is not installed.

    Example:
        >>> import headrace, torch
        >>> weights = headrace.export(torch.nn.Linear(2, 3), "model.pt")
        >>> weights["weight"].shape
        torch.Size([3, 2])
    """
    if isinstance(source, str | os.PathLike):
        state: Mapping[str, Any] = load_weights(find_weights(os.fspath(source), runs))
    else:
        state = source if isinstance(source, Mapping) else source.state_dict()
    save_weights(state, path)
    return dict(state)


def load_model(where: str, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> nn.Module:
    """Create a model and load its parameters.

    Args:
        where: `sage`, `gcn` or `gat` for built-in models, whose sizes follow from the parameters;
            or `FILE.py:FUNCTION` for a function that creates the model (default `make_model`). The
            function receives `config` if it has a parameter.
        weights: A `state_dict`.
        config: Configuration of the script.

    Raises:
        SpecError: There is no such model, or the parameters do not match it.
    """
    model = _own_model(where, weights) if where in _WEIGHT_OF else _model_of(where, config)
    try:
        model.load_state_dict(dict(weights))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise SpecError(f"the parameters do not match {where}: {reason}", _ANOTHER) from None
    return model


_ANOTHER = "pass the function that created the model in training: --model train.py:make_model"


def _own_model(name: str, weights: Mapping[str, Tensor]) -> nn.Module:
    numbers = {key.split(".")[1] for key in weights if key.startswith("convs.")}
    shapes = [weights.get(f"convs.{i}.{_WEIGHT_OF[name]}") for i in range(len(numbers))]
    found = [tuple(each.shape) for each in shapes if each is not None]
    if not found or len(found) != len(shapes):
        raise SpecError(f"the parameters do not match {name}", _ANOTHER)
    return make_model(name, found[0][1], found[0][0], found[-1][0], len(found))


def _model_of(where: str, config: Mapping[str, Any]) -> nn.Module:
    file, _, function = where.partition(":")
    path, name = Path(file), function or FUNCTION
    if path.suffix != ".py" or not path.is_file():
        raise SpecError(
            f"{file} is neither a script nor one of {', '.join(_WEIGHT_OF)}",
            "pass --model train.py:make_model",
        )
    spec = importlib.util.spec_from_file_location(f"headrace_model_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    make = getattr(module, name, None)
    if not callable(make):
        raise SpecError(
            f"{file} has no function {name}", "pass the one that creates it: --model FILE:NAME"
        )
    takes_config = len(inspect.signature(make).parameters) > 0
    model: nn.Module = make(dict(config)) if takes_config else make()
    return model
