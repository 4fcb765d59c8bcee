"""Builds the config of every task of a run from the plan and its machines."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.full_graph import by_features
from headrace.core.job import JobKind, Role
from headrace.core.plan import Plan
from headrace.core.traffic import PLAIN
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.sampler_worker.seed_assignment import (
    assign_seeds,
    divide_shards,
    whole_seed_counts,
)
from headrace.rpc.credentials import Authority, Credentials, Secret
from headrace.runtime.cluster.nodes import Node
from headrace.runtime.protocol.run_context import TrainerSettings
from headrace.runtime.run_dir.attached_stores import AttachedStores
from headrace.runtime.run_dir.run_config import RunConfig
from headrace.runtime.run_dir.temp_dirs import run_folder
from headrace.training.checkpoint_files import Checkpoint

_UNLIMITED_WINDOW = 8
"""Sub-batches buffered per sampler if the plan sets no window; bounds memory."""

RETRY_BUDGET_S = 60.0
"""Retry budget for a lost store or sampler; a store of 10 M nodes restarts sooner."""

_THREADS_VARIABLE = "OMP_NUM_THREADS"


def seeds_by_partition(
    graph: PartitionedGraph, node_type: str, split: str
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Original ids of a split's nodes in every partition, and their second-level clusters."""
    parts, clusters = [], []
    for part in map(graph.part, range(graph.num_parts)):
        local = part.split(node_type, split)
        parts.append(np.asarray(part.original_ids(node_type))[local])
        clusters.append(np.searchsorted(part.clusters(node_type)[1:], local, side="right"))
    return parts, clusters


@dataclass(frozen=True)
class SeedAssignment:
    """Seed shards of a job, which a resumed run keeps.

    Attributes:
        seeds_per_iteration: Seeds per iteration of each sampler in the run's first plan.
        ids: Original node ids per shard, by split.
    """

    seeds_per_iteration: tuple[int, ...]
    ids: Mapping[str, Sequence[np.ndarray]]

    @classmethod
    def of(cls, plan: Plan, graph: PartitionedGraph) -> SeedAssignment:
        """Assign a graph's splits to the samplers of a plan."""
        mix = plan.seeds
        if plan.job.kind is JobKind.FULL_GRAPH:
            # A machine may have several partitions, or none.
            machines = np.array(plan.part_machines)
            mix = mix[:, machines] / np.bincount(machines)[machines]
        seeds_per_iteration = whole_seed_counts(mix, plan.job.samplers_per_trainer)
        ids: dict[str, Sequence[np.ndarray]] = {}
        for node in graph.manifest.nodes:
            if not node.splits:
                continue
            for split in node.splits:
                parts, clusters = seeds_by_partition(graph, node.name, split)
                ids[split] = assign_seeds(
                    parts, mix, seeds_per_iteration, plan.seed, clusters=clusters
                )
            # A job trains on one node type.
            break
        return cls(seeds_per_iteration, ids)

    def fingerprint(self) -> str:
        """Hash (16 hex digits) of the assignment."""
        digest = hashlib.sha256(repr(self.seeds_per_iteration).encode())
        for split, own in sorted(self.ids.items()):
            for ids in own:
                digest.update(f"{split} {len(ids)} ".encode() + np.ascontiguousarray(ids).tobytes())
        return digest.hexdigest()[:16]


class TaskConfigs:
    """Builds the configs of all tasks.

    Args:
        run: The run; its plan, the first one, defines the seed assignment.
        plan: The plan of this attempt.
        nodes: Nodes in the order of the plan's cluster.
        graph: The graph; None for a run without one.
        resume: Checkpoint to resume from.
        attached: Stores that run already; None if the run starts its own.
    """

    def __init__(
        self,
        run: RunConfig,
        plan: Plan,
        nodes: Sequence[Node],
        graph: PartitionedGraph | None,
        resume: Checkpoint | None = None,
        attached: AttachedStores | None = None,
    ) -> None:
        self._run, self._plan, self._nodes, self._resume = run, plan, nodes, resume
        self._assignment = SeedAssignment((), {})
        self._shard_counts: tuple[int, ...] = ()
        if graph is not None and not run.is_local:
            self._assignment = SeedAssignment.of(run.plan, graph)
            self._shard_counts = divide_shards(
                self._assignment.seeds_per_iteration, len(plan.placed.samplers)
            )
        num_parts = 0 if graph is None else graph.num_parts
        num_read = num_parts if run.num_stores is None else run.num_stores
        self._read_as_remote = range(num_read if run.is_local else 0)
        self._attached = attached
        self._keys = make_keys(nodes, run.tls) if attached is None else attached.keys
        self._ports: dict[int, Mapping[int, int]] = {}
        self._server_ports: dict[int, int] = {}
        self._folders: dict[int, str] = {}
        if attached is not None:
            self._folders.update(enumerate(attached.folders))
        self.ranks = {w: rank for rank, w in enumerate(plan.placed.ring_order)}

    def keys(self, machine: int) -> bytes:
        """Credentials of a machine's tasks."""
        return self._keys[machine]

    def set_folder(self, machine: int, folder: str) -> None:
        """Record the graph folder of a machine."""
        self._folders[machine] = folder

    def set_ports(self, machine: int, ports: Mapping[int, int]) -> None:
        """Record the store ports of a machine, by graph partition."""
        self._ports[machine] = ports

    def some_port(self, machine: int) -> int | None:
        """A store port of a machine; None if it has no graph partition."""
        return next(iter(self._ports.get(machine, {}).values()), None)

    def set_server_port(self, server: int, port: int) -> None:
        """Record the port of a parameter server."""
        self._server_ports[server] = port

    def attached_ports(self, machine: int) -> Mapping[int, int] | None:
        """Store ports of a machine whose store is not started by the run; None if it is."""
        if self._attached is not None:
            return self._attached.ports[machine]
        return None if machine in self._folders else {}

    def store(self, machine: int) -> dict[str, Any]:
        """Fields of a `StoreConfig`."""
        parts = [part for part, home in enumerate(self._plan.part_machines) if home == machine]
        is_read = not self._run.is_local or bool(self._read_as_remote)
        return store_config(
            self._folders[machine],
            dict.fromkeys(parts, 0),
            self._nodes[machine],
            self._run.tls,
            is_read,
        )

    def sampler(self, sampler: int) -> tuple[dict[str, Any], dict[str, list[bytes]]]:
        """Fields of a `SamplerConfig`, and the seeds of its shards by split."""
        machine = self._plan.placed.samplers[sampler]
        settings: dict[str, Any] = {"tls": self._run.tls}
        if machine in self._folders:
            settings["graph"] = self._folders[machine]
            settings["stores"] = self._stores_for(machine)
        return settings, {
            split: [saved(ids[shard]) for shard in self._shards_of(sampler)]
            for split, ids in self._assignment.ids.items()
        }

    def server(self, server: int) -> dict[str, Any]:
        """Fields of a `ServerConfig`."""
        return {
            "num_trainers": self._plan.job.trainers,
            "num_threads": max(1, int(self._plan.job.demand(Role.SERVER).get("cpu", 1))),
            "host": self._nodes[self._plan.placed.servers[server]].address,
            "tls": self._run.tls,
        }

    def trainer(self, trainer: int) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Fields of a `RunContext`, and seed files by name."""
        job, machine = self._plan.job, self._plan.placed.trainers[trainer]
        per_trainer = job.samplers_per_trainer
        own = range(trainer * per_trainer, (trainer + 1) * per_trainer)
        has_samplers = self._run.num_samplers or not self._run.is_local
        names = [f"sampler{trainer}.{i}" for i in range(per_trainer)] if has_samplers else []
        files = {}
        for split, ids in self._assignment.ids.items():
            shards = {name: self._shards_of(s) for name, s in zip(names, own, strict=True)}
            shards[f"trainer{trainer}"] = [shard for each in shards.values() for shard in each]
            for name, own_shards in shards.items():
                together = np.sort(np.concatenate([ids[shard] for shard in own_shards]))
                files[f"{split}-{name}.npy"] = saved(together)
        traffic = self._plan.profile.traffic or PLAIN
        context = {
            "parts": self._folders.get(machine),
            "stores": self._stores_for(machine),
            "shares_stores": self._attached is not None,
            "own_stores": self._stores_for(machine, own=True),
            "servers": self._servers(),
            "tls": self._run.tls,
            "retry_budget_s": RETRY_BUDGET_S if self._run.max_restarts else 0.0,
            "follows_script": self._run.follows_script,
            "rank": self.ranks[trainer],
            "world_size": job.trainers,
            **{name: getattr(self._run, name) for name in TrainerSettings.model_fields},
            "plan": self._plan.fingerprint(),
            "assignment": self._assignment.fingerprint(),
            "samplers": names,
            "samplers_per_trainer": per_trainer,
            "window": job.window or _UNLIMITED_WINDOW,
            "bins": job.bins or 1,
            "far": traffic.far,
            "cache_bytes": round(traffic.cache_bytes),
            "features": by_features(job.swaps),
            "shard_counts": self._shard_counts,
            "seeds_per_iteration": self._assignment.seeds_per_iteration,
            "counts": {
                split: [len(one) for one in ids] for split, ids in self._assignment.ids.items()
            },
        }
        return context, files

    def resume(self) -> dict[str, bytes]:
        """Files of the checkpoint to resume from, by name; empty for a new run."""
        found = self._resume
        paths = () if found is None else (found.path, found.sidecar_path)
        return {path.name: path.read_bytes() for path in paths}

    def environment(
        self, trainer: int, port: int, gpus: Mapping[int, Sequence[str]]
    ) -> dict[str, str]:
        """Environment variables as set by torchrun; `port` is the rendezvous port on rank 0.

        A local run sets the number of threads unless the user does, and with one trainer no others.
        """
        num_threads = max(1, int(self._plan.job.demand(Role.TRAINER).get("cpu", 1)))
        threads = {_THREADS_VARIABLE: str(num_threads)}
        if self._run.is_local and _THREADS_VARIABLE in os.environ:
            threads = {}
        placed = self._plan.placed
        if self._run.is_local and len(placed.trainers) == 1:
            return threads
        machine = placed.trainers[trainer]
        beside = [w for w in placed.ring_order if placed.trainers[w] == machine]
        machines = list(dict.fromkeys(placed.trainers[w] for w in placed.ring_order))
        first = self._nodes[placed.trainers[placed.ring_order[0]]]
        number = str(machines.index(machine))
        variables = {
            "MASTER_ADDR": first.address,
            "MASTER_PORT": str(port),
            "RANK": str(self.ranks[trainer]),
            "WORLD_SIZE": str(len(placed.trainers)),
            "LOCAL_RANK": str(beside.index(trainer)),
            "LOCAL_WORLD_SIZE": str(len(beside)),
            "GROUP_RANK": number,
            "NODE_RANK": number,
            **threads,
        }
        # Scripts select a device by LOCAL_RANK, so each trainer sees all GPUs of its machine.
        seen = list(dict.fromkeys(gpu for w in beside for gpu in gpus.get(w, ())))
        if seen:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(seen)
        return variables

    def _shards_of(self, sampler: int) -> list[int]:
        first = sum(self._shard_counts[:sampler])
        return list(range(first, first + self._shard_counts[sampler]))

    def _servers(self) -> list[dict[str, Any]]:
        nodes = [self._nodes[machine] for machine in self._plan.placed.servers]
        return [
            {
                "task": f"ps{p}",
                "machine": node.machine,
                "host": node.address,
                "port": self._server_ports[p],
            }
            for p, node in enumerate(nodes)
        ]

    def _stores_for(self, machine: int, own: bool = False) -> list[dict[str, Any]]:
        """Stores of remote graph partitions, or with `own` of the machine's own."""
        if machine not in self._folders:
            return []
        return [
            {
                "part": part,
                "task": f"store{home}",
                "machine": self._nodes[home].machine,
                "host": self._nodes[home].address,
                "port": self._ports[home][part],
            }
            for part, home in enumerate(self._plan.part_machines)
            if (home == machine and part not in self._read_as_remote) == own
        ]


def store_config(
    folder: str, ports: Mapping[int, int], node: Node, tls: bool, warm: bool = True
) -> dict[str, Any]:
    """Fields of a `StoreConfig`.

    Args:
        folder: Folder of the graph on the store's machine.
        ports: Port of each graph partition; 0 for any.
        node: Node of the store.
        tls: Whether connections are encrypted.
        warm: Whether to read the columns into memory at start.
    """
    return {
        "graph": folder,
        "parts": dict(ports),
        "host": node.address,
        "tls": tls,
        "verify": True,
        "warm": warm,
    }


def make_keys(nodes: Sequence[Node], tls: bool) -> list[bytes]:
    """Contents of the credentials file of each machine."""
    token = Secret.random()
    authority = Authority() if tls else None
    keys = []
    with run_folder() as folder:
        for number, node in enumerate(nodes):
            identity = None if authority is None else authority.issue(node.machine, [node.address])
            path = Path(folder) / str(number)
            Credentials(token, identity).save(path)
            keys.append(path.read_bytes())
    return keys


def saved(ids: np.ndarray) -> bytes:
    """Serialize ids in `.npy` format."""
    file = io.BytesIO()
    np.save(file, np.asarray(ids, np.int64))
    return file.getvalue()
