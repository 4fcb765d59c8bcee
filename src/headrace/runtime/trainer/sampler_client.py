"""Sampler processes for a loader of the script: which loaders get them, and what they are told."""

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
from headrace.graph.sampler_worker.channels.shm import SubBatchReceiver, meet_sampler
from headrace.graph.sampler_worker.config import CacheConfig, SamplerConfig, SeedShard, Wanted
from headrace.graph.sampler_worker.prefetcher import Prefetcher, start_prefetcher
from headrace.graph.sampler_worker.schedule import batches_per_epoch, share_of
from headrace.graph.schema import EdgeType
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.protocol.sampler_requests import (
    ReplaceSampler,
    SamplerPlace,
    StartSamplers,
    ask_for_another,
    ask_for_samplers,
    without_paths,
)
from headrace.runtime.protocol.trainer_messages import notify_failover, tell_waiting
from headrace.runtime.trainer.step_trace import measured_parts

if TYPE_CHECKING:
    from headrace.rpc.reconnect import RetryBudget

_GIVEN = Path("given")
"""For seeds: whoever starts a sampler knows where they are."""

_MAKE_OTHERS = {
    "time_attr": None,
    "subgraph_type": "directional",
    "transform_sampler_output": None,
    "neighbor_sampler": None,
    "directed": True,
    "sampler": None,
    "batch_sampler": None,
}
"""Settings that samplers do not know, and how they are when nobody asks for them."""


def can_prefetch(settings: Mapping[str, Any], num_seeds: int) -> bool:
    """Whether sampler processes can make a loader's batches.

    Without `shuffle` a script may count on the order of its seeds, which samplers change.

    Args:
        settings: Of the loader, by name.
        num_seeds: How many it has.
    """
    if not settings.get("shuffle") or not num_seeds:
        return False
    for name, usual in _MAKE_OTHERS.items():
        value = settings.get(name, usual)
        if getattr(value, "value", value) != usual:  # an enum of PyG, or its text
            return False
    return True


def num_batches(num_seeds: int, num_samplers: int, settings: Mapping[str, Any]) -> int:
    """Batches of an epoch that samplers make; they may need one more than a single process."""
    counts = [len(range(s, num_seeds, num_samplers)) for s in range(num_samplers)]
    return batches_per_epoch(
        counts, settings.get("batch_size", 1), settings.get("drop_last", False)
    )


@dataclass(frozen=True)
class Portion:
    """What one sampler of a trainer adds to batches.

    Attributes:
        share: Seeds per batch.
        ends: Of the last batches of an epoch, if that is not its share.
        seeds: Original ids; none for those that the plan deals it.
        further: What it adds besides, in parts of their own.
    """

    share: int
    ends: tuple[int, ...] = ()
    seeds: np.ndarray | None = None
    further: tuple[Portion, ...] = ()


def portions_of(seeds: np.ndarray, batch_size: int, num_samplers: int) -> list[Portion]:
    """Divide a trainer's seeds among its samplers."""
    # Every n-th, so that each sampler sees a fair choice whatever order the ids have.
    ids = np.sort(seeds)
    return [
        Portion(share_of(batch_size, num_samplers, s), (), ids[s::num_samplers])
        for s in range(num_samplers)
    ]


def retry_budget_of(run: RunContext) -> RetryBudget | None:
    """With stores that a run starts again; none if it does not."""
    from headrace.rpc.reconnect import RetryBudget

    if not run.retry_budget_s:
        return None
    return RetryBudget(run.retry_budget_s, time.monotonic, partial(tell_waiting, run))


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
    """Start a run's samplers for one loader, or have them started.

    Args:
        run: Says where stores are.
        access: The graph.
        folder: Where it lies.
        node_type: What seeds are.
        portions: Of each sampler.
        num_steps: Batches of an epoch.
        fanouts: Neighbours per hop.
        settings: Of the loader, by name.
        split: Of which the plan deals seeds.
        first: Epoch and batch with which to begin.

    Raises:
        RunError: Samplers could not be started.
    """
    stores, cache_bytes = run.stores_of(folder), settings.get("cache_bytes", 0)
    names = run.samplers or tuple(f"sampler {s}" for s in range(len(portions)))
    configs = [
        SamplerConfig(
            task=name,
            machine=run.machine,
            graph=folder,
            stores=stores,
            credentials=run.credentials if stores else None,
            tls=run.tls,
            node_type=node_type,
            seeds=_GIVEN,
            share=portion.share,
            ends=portion.ends,
            further=tuple(
                SeedShard(seeds=_GIVEN, share=each.share, ends=each.ends)
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
            columns=tuple(
                Wanted(node_type=name, name=column)
                for name in access.node_types
                for column in access.columns[name]
            ),
            keep_dtype=settings.get("keep_dtype", False),
            edge_ids=any(access.has_edge_ids(edge_type) for edge_type in access.edge_types),
            edge_columns=any(access.columns[edge_type] for edge_type in access.edge_types),
            cache=CacheConfig(num_bytes=cache_bytes) if cache_bytes else None,
            window=run.window,
            retry_budget_s=run.retry_budget_s,
        )
        for name, portion in zip(names, portions, strict=True)
    ]
    seeds = [portion.seeds for portion in portions]
    if run.requests is not None:
        receivers = _ask(run, configs, seeds, split)
        return Prefetcher(
            receivers,
            num_steps,
            time.perf_counter,
            first_batch=first[1],
            lanes=[len(config.lanes) for config in configs],
            tell=partial(tell_waiting, run),
        )
    own = [ids for ids in seeds if ids is not None]
    if run.log is None:
        return start_prefetcher(configs, own, time.perf_counter)
    with run.log.open("ab") as log:
        return start_prefetcher(configs, own, time.perf_counter, log)


def _ask(
    run: RunContext,
    configs: Sequence[SamplerConfig],
    seeds: Sequence[np.ndarray | None],
    split: str | None,
) -> list[SubBatchReceiver]:
    """Have samplers started, and connect to them."""
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
        places = ask_for_samplers(run.requests, request)
    receivers: list[SubBatchReceiver] = []
    try:
        for number, (place, config) in enumerate(zip(places, configs, strict=True)):
            take = _take_from if not run.retry_budget_s else partial(_fail_over, number=number)
            receivers.append(take(run, place, config))
    except BaseException:
        for receiver in receivers:
            receiver.close()
        raise
    return receivers


def _fail_over(
    run: RunContext, place: SamplerPlace, config: SamplerConfig, number: int
) -> SubBatchReceiver:
    """Take parts from a sampler that is replaced when it is lost."""
    loader = f"{run.task} on {run.machine}"
    receiver: SubBatchReceiver
    try:
        receiver = _take_from(run, place, config)
    except SamplerLostError as error:
        receiver = LostReceiver(error)

    def replace(epoch: int, batch: int, why: str) -> SubBatchReceiver:
        assert run.requests is not None
        request = ReplaceSampler(sampler=number, epoch=epoch, batch=batch, why=why)
        try:
            other = ask_for_another(run.requests, request, loader)
        except RunError as error:
            # Its machine may be cut off: that is for others to find out, who end this trainer then.
            raise SamplerLostError(error.problem, error.remedy) from None
        return _take_from(run, other, config)

    return FailoverReceiver(
        f"{place.task or config.task} on {place.machine or run.machine}",
        receiver,
        replace,
        (config.first_epoch, config.first_batch),
        config.batches_per_epoch,
        partial(notify_failover, run),
        len(config.lanes),
    )


def _take_from(run: RunContext, place: SamplerPlace, config: SamplerConfig) -> SubBatchReceiver:
    """Connect to a sampler.

    Raises:
        SamplerLostError: It is not there any more.
    """
    name, machine = place.task or config.task, place.machine or run.machine
    if place.socket is not None:
        return meet_sampler(place.socket, f"{name} on {machine}")
    from headrace.graph.sampler_worker.channels.rpc import RpcReceiver
    from headrace.rpc.channel import Address, FlightChannel
    from headrace.rpc.errors import StoreLostError

    if place.host is None or place.port is None:
        raise RunError(f"{name} on {machine} is nowhere", "use one version of headrace")
    address = Address(name, machine, place.host, place.port)
    try:
        channel = FlightChannel(address, run.load_credentials())
    except StoreLostError as error:
        raise SamplerLostError(error.problem, error.remedy) from None
    parts = measured_parts(run, channel, name, config.batches_per_epoch, len(config.lanes))
    return RpcReceiver(parts, str(address))
