"""Starts sampler processes for a script's loader: which loaders get them, and their configs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.core.errors import RunError
from headrace.graph.loader.graph_view import GraphView
from headrace.graph.sampler_worker.channels.errors import SamplerLostError
from headrace.graph.sampler_worker.channels.failover import FailoverReceiver, LostReceiver
from headrace.graph.sampler_worker.channels.shm import SubBatchReceiver, connect_sampler
from headrace.graph.sampler_worker.config import (
    CacheConfig,
    SamplerConfig,
    ScoringConfig,
    SeedShard,
    Wanted,
)
from headrace.graph.sampler_worker.prefetcher import Prefetcher
from headrace.graph.sampler_worker.schedule import batches_per_epoch, sampler_batch_size
from headrace.graph.schema import EdgeType
from headrace.rpc.config import TaskAddress
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.protocol.sampler_requests import (
    ReplaceSampler,
    SamplerPlace,
    StartSamplers,
    request_replacement,
    request_samplers,
    without_paths,
)
from headrace.runtime.protocol.trainer_messages import Failover, send, send_waiting
from headrace.runtime.trainer.step_trace import metered_channel

if TYPE_CHECKING:
    from headrace.rpc.reconnect import RetryBudget
    from headrace.training.remote_sampling.settings import RemoteSampling

_PLACEHOLDER = Path("given")
"""Placeholder for seed files, whose paths are set by the process that starts the sampler."""

_UNSUPPORTED = {
    "time_attr": None,
    "subgraph_type": "directional",
    "transform_sampler_output": None,
    "neighbor_sampler": None,
    "directed": True,
    "sampler": None,
    "batch_sampler": None,
}
"""Loader settings that samplers do not support, with their default values."""


def can_prefetch(settings: Mapping[str, Any], num_seeds: int) -> bool:
    """Whether samplers can build a loader's batches; only with `shuffle`, as they reorder seeds."""
    if not settings.get("shuffle") or not num_seeds:
        return False
    for name, usual in _UNSUPPORTED.items():
        value = settings.get(name, usual)
        if getattr(value, "value", value) != usual:  # an enum of PyG, or its string
            return False
    return True


def use_planned_far(settings: dict[str, Any], run: RunContext | None) -> None:
    """Set `far` of a loader that trains and does not set it itself."""
    if run is None or settings.get("far") is not None or not settings.get("shuffle"):
        return
    if settings.get("remote") is not None or settings.get("labor"):
        return
    if settings.get("weight_attr") is None and settings.get("time_attr") is None:
        settings["far"] = run.far


def num_batches(num_seeds: int, num_samplers: int, settings: Mapping[str, Any]) -> int:
    """Batches per epoch with samplers; may be one more than in a single process."""
    counts = [len(range(s, num_seeds, num_samplers)) for s in range(num_samplers)]
    return batches_per_epoch(
        counts, settings.get("batch_size", 1), settings.get("drop_last", False)
    )


@dataclass(frozen=True)
class Portion:
    """One sampler's sub-batches of a trainer's batches.

    Attributes:
        seeds_per_iteration: Seeds per batch.
        ends: Seeds in the last batches of an epoch, where they differ from `seeds_per_iteration`.
        seeds: Original ids; none for the seeds that the plan assigns.
        further: Further seed shards of the sampler, with sub-batches of their own.
    """

    seeds_per_iteration: int
    ends: tuple[int, ...] = ()
    seeds: np.ndarray | None = None
    further: tuple[Portion, ...] = ()


def portions_of(seeds: np.ndarray, batch_size: int, num_samplers: int) -> list[Portion]:
    """Divide a trainer's seeds among its samplers."""
    # Strided, so that each sampler gets a fair sample in any order of ids.
    ids = np.sort(seeds)
    return [
        Portion(sampler_batch_size(batch_size, num_samplers, s), (), ids[s::num_samplers])
        for s in range(num_samplers)
    ]


def retry_budget_of(run: RunContext) -> RetryBudget | None:
    """Retry budget for stores that the run restarts; none if it restarts none."""
    from headrace.rpc.reconnect import RetryBudget

    if not run.retry_budget_s:
        return None
    return RetryBudget(run.retry_budget_s, time.monotonic, partial(send_waiting, run))


def start_samplers(
    run: RunContext,
    access: GraphView,
    folder: Path,
    node_type: str,
    portions: Sequence[Portion],
    num_steps: int,
    fanouts: Mapping[EdgeType, list[int]],
    settings: Mapping[str, Any],
    split: str | None = None,
    first: tuple[int, int] = (0, 0),
) -> Prefetcher:
    """Request the samplers of one loader from the task actor.

    `settings` are the loader's, by name. The plan assigns the seeds of `split`. `first` is the
    epoch and batch to start with. Raises `RunError` if samplers cannot be started.
    """
    stores, cache_bytes = run.stores_of(folder), settings.get("cache_bytes")
    if cache_bytes is None:
        cache_bytes = run.cache_bytes if split == "train" else 0
    names = run.samplers[: len(portions)]
    configs = [
        SamplerConfig(
            task=name,
            machine=run.machine,
            graph=folder.resolve(),
            stores=stores,
            credentials=run.credentials if stores else None,
            tls=run.tls,
            node_type=node_type,
            seeds=_PLACEHOLDER,
            seeds_per_iteration=portion.seeds_per_iteration,
            ends=portion.ends,
            further=tuple(
                SeedShard(
                    seeds=_PLACEHOLDER, seeds_per_iteration=each.seeds_per_iteration, ends=each.ends
                )
                for each in portion.further
            ),
            batches_per_epoch=num_steps,
            seed=settings.get("seed", 0),
            first_epoch=first[0],
            first_batch=first[1],
            fanouts=tuple((edge_type, tuple(hops)) for edge_type, hops in fanouts.items()),
            replace=settings.get("replace", False),
            disjoint=settings.get("disjoint", False),
            weight=settings.get("weight_attr"),
            far=settings.get("far") or 1.0,
            labor=settings.get("labor", False),
            columns=tuple(
                Wanted(node_type=name, name=column)
                for name in access.node_types
                for column in access.columns[name]
            ),
            keep_dtype=settings.get("keep_dtype", False),
            edge_ids=any(access.has_edge_ids(edge_type) for edge_type in access.edge_types),
            edge_columns=any(access.columns[edge_type] for edge_type in access.edge_types),
            cache=CacheConfig(num_bytes=cache_bytes) if cache_bytes else None,
            scoring=_scoring(settings.get("remote")),
            window=run.window,
            retry_budget_s=run.retry_budget_s,
        )
        for name, portion in zip(names, portions, strict=True)
    ]
    receivers = _request_samplers(run, configs, [portion.seeds for portion in portions], split)
    return Prefetcher(
        receivers,
        num_steps,
        time.perf_counter,
        first_batch=first[1],
        shards=[len(config.shards) for config in configs],
        notify=partial(send_waiting, run),
    )


def _scoring(remote: RemoteSampling | None) -> ScoringConfig | None:
    if remote is None:
        return None
    return ScoringConfig(column=remote.column, features=remote.features, least=remote.least)


def _request_samplers(
    run: RunContext,
    configs: Sequence[SamplerConfig],
    seeds: Sequence[np.ndarray | None],
    split: str | None,
) -> list[SubBatchReceiver]:
    """Request samplers from the task actor, and connect to them."""
    assert run.requests is not None
    with TemporaryDirectory(dir=run.requests.parent) as folder:
        paths: list[Path | None] = []
        for config, ids in zip(configs, seeds, strict=True):
            path = None if ids is None else Path(folder) / f"{config.task}.npy"
            if path is not None and ids is not None:
                np.save(path, ids)
            paths.append(path)
        request = StartSamplers(
            configs=tuple(map(without_paths, configs)),
            seeds=tuple(paths),
            split=split,
            loader=f"{run.task} on {run.machine}",
        )
        places = request_samplers(run.requests, request)
    receivers: list[SubBatchReceiver] = []
    try:
        for number, (place, config) in enumerate(zip(places, configs, strict=True)):
            reach = _connect_to if not run.retry_budget_s else partial(_fail_over, number=number)
            receivers.append(reach(run, place, config))
    except BaseException:
        for receiver in receivers:
            receiver.close()
        raise
    return receivers


def _fail_over(
    run: RunContext, place: SamplerPlace, config: SamplerConfig, number: int
) -> SubBatchReceiver:
    """Return a receiver that replaces its sampler when it is lost."""
    loader = f"{run.task} on {run.machine}"
    receiver: SubBatchReceiver
    try:
        receiver = _connect_to(run, place, config)
    except SamplerLostError as error:
        receiver = LostReceiver(error)

    def replace(epoch: int, batch: int, why: str) -> SubBatchReceiver:
        assert run.requests is not None
        request = ReplaceSampler(sampler=number, epoch=epoch, batch=batch, why=why)
        try:
            other = request_replacement(run.requests, request, loader)
        except RunError as error:
            # Its machine may be disconnected: the controller detects that and stops this trainer.
            raise SamplerLostError(error.problem, error.remedy) from None
        return _connect_to(run, other, config)

    return FailoverReceiver(
        f"{place.task or config.task} on {place.machine or run.machine}",
        receiver,
        replace,
        (config.first_epoch, config.first_batch),
        config.batches_per_epoch,
        lambda text: send(run.messages, Failover(text)),
        len(config.shards),
    )


def _connect_to(run: RunContext, place: SamplerPlace, config: SamplerConfig) -> SubBatchReceiver:
    """Connect to a sampler; raises `SamplerLostError` if it is unreachable."""
    name, machine = place.task or config.task, place.machine or run.machine
    if place.socket is not None:
        return connect_sampler(place.socket, f"{name} on {machine}")
    from headrace.graph.sampler_worker.channels.rpc import RpcReceiver
    from headrace.rpc.client import RpcChannel
    from headrace.rpc.errors import StoreLostError

    if place.host is None or place.port is None:
        raise RunError(f"{name} on {machine} has no address", "use the same headrace version")
    address = TaskAddress(task=name, machine=machine, host=place.host, port=place.port)
    try:
        channel = RpcChannel(address, run.load_credentials())
    except StoreLostError as error:
        raise SamplerLostError(error.problem, error.remedy) from None
    metered = metered_channel(run, channel, name, config.batches_per_epoch, len(config.shards))
    return RpcReceiver(metered, str(address))
