"""Sends the model in training to samplers that score remote nodes with it."""

from __future__ import annotations

import copy
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

from headrace.core.errors import SpecError
from headrace.graph.loader.graph_view import GraphView
from headrace.graph.sampler_worker.prefetcher import Prefetcher
from headrace.graph.sampler_worker.scoring import MAX_MODEL_BYTES

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
            raise SpecError("remote needs a homogeneous graph", "use `far` instead")
        for name, usual in (("weight_attr", None), ("far", 1.0), ("labor", False)):
            if settings[name] != usual:
                raise SpecError(f"remote cannot be combined with {name}", "omit one of them")
        info = access.column(access.node_types[0], self._remote.column)
        if len(info.shape) != 1:
            raise SpecError(f"{info.name!r} is not a vector per node", "name a feature column")

    def after_batch(self, prefetcher: Prefetcher) -> None:
        """Count a batch, after its optimizer step."""
        self._num_batches += 1
        if self._num_batches % self._remote.every == 0:
            prefetcher.send_model(pickle_model(self._remote))


def pickle_model(remote: RemoteSampling) -> bytes:
    """Pickle a copy of the model on the CPU and its scores for a process without the script.

    Raises:
        SpecError: The model cannot be pickled, or is too large.
    """
    from ray import cloudpickle

    model = remote.model
    if isinstance(model, DistributedDataParallel):
        model = model.module
    modules = _own_modules()
    for each in modules:
        cloudpickle.register_pickle_by_value(each)
    try:
        data: bytes = cloudpickle.dumps((copy.deepcopy(model).cpu(), remote.score))
    except Exception as error:
        raise SpecError(
            f"the model of `remote` cannot be pickled: {error}", "remove what cannot from the model"
        ) from None
    finally:
        for each in modules:
            cloudpickle.unregister_pickle_by_value(each)
    if len(data) > MAX_MODEL_BYTES:
        raise SpecError(
            f"the model of `remote` has {len(data)} bytes, {MAX_MODEL_BYTES} are allowed",
            "use `far` instead",
        )
    return data


def _own_modules() -> list[ModuleType]:
    """Modules of the script, also those that PyG generates for its layers."""
    libraries = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or name.split(".")[0] in ("__main__", "headrace"):
            continue
        path = Path(file)
        if {"site-packages", "dist-packages"} & set(path.parts):
            continue
        if not any(path.is_relative_to(folder) for folder in libraries):
            found.append(module)
    return found
