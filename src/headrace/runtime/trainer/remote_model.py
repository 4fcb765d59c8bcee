"""Sends the model in training to samplers that score remote nodes with it."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headrace.core.errors import SpecError
from headrace.graph.loader.graph_view import GraphView
from headrace.graph.sampler_worker.prefetcher import Prefetcher

if TYPE_CHECKING:
    from headrace.training.remote_sampling.settings import RemoteSampling


class ModelFeed:
    """Sends the newest model after every `every` batches."""

    def __init__(self, remote: RemoteSampling) -> None:
        self._remote = remote
        self._num_batches = 0

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> ModelFeed | None:
        """Return the feed of a loader with `remote`."""
        remote = settings.get("remote")
        return None if remote is None else cls(remote)

    def check(self, access: GraphView, settings: Mapping[str, Any]) -> None:
        """Raise SpecError if the graph or other settings do not go with `remote`."""
        if not access.is_homogeneous:
            raise SpecError(
                "remote needs a graph with one node type and one edge type", "use `far` instead"
            )
        if settings["weight_attr"] is not None:
            raise SpecError("remote cannot be combined with weights", "omit one of them")

    def after_batch(self, prefetcher: Prefetcher) -> None:
        """Count a batch, after its optimizer step."""
        self._num_batches += 1
        if self._num_batches % self._remote.every == 0:
            prefetcher.send_model(pickle_model(self._remote))


def pickle_model(remote: RemoteSampling) -> bytes:
    """Pickle the model and its score function for a process without the script.

    Raises:
        SpecError: The model cannot be pickled.
    """
    from ray import cloudpickle

    model = remote.model
    if isinstance(model, DistributedDataParallel):
        model = model.module
    modules = _own_modules(model, remote.score)
    for each in modules:
        cloudpickle.register_pickle_by_value(each)
    try:
        data: bytes = cloudpickle.dumps((model, remote.score))
    except Exception as error:
        raise SpecError(
            f"the model of `remote` cannot be pickled: {error}", "remove what cannot from the model"
        ) from None
    finally:
        for each in modules:
            cloudpickle.unregister_pickle_by_value(each)
    return data


def _own_modules(model: nn.Module, score: object) -> list[ModuleType]:
    """Modules of the script's own classes and functions, which samplers cannot import."""
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    found = {}
    for name in {type(each).__module__ for each in model.modules()} | {
        str(getattr(score, "__module__", "builtins"))
    }:
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if module is None or file is None or name.split(".")[0] in ("__main__", "headrace"):
            continue
        if not any(Path(file).is_relative_to(folder) for folder in installed):
            found[name] = module
    return list(found.values())
