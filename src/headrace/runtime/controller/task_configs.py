"""What every task of a run is told, made from the plan and from where its machines are."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.job import Role
from headrace.core.plan import Plan
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.sampler_worker.seed_assignment import (
    assign_seeds,
    divide_lanes,
    whole_seed_counts,
)
from headrace.rpc.credentials import Authority, Credentials, Secret
from headrace.runtime.cluster.nodes import Node
from headrace.runtime.run_dir.temp_dirs import run_folder
from headrace.training.checkpoint_files import Checkpoint

_UNLIMITED_WINDOW = 8
"""Parts of a sampler that wait for its trainer if the plan sets no bound: memory is one."""

PATIENCE_S = 60.0
"""How long a store or sampler that is lost is waited for: a store of 10 M nodes is back sooner."""

_CERTIFICATE_LIFETIME = timedelta(days=30)


@dataclass(frozen=True)
class SeedAssignment:
    """Seeds of a job: its lanes, which a run keeps on whatever machines it goes on.

    Attributes:
        shares: Seeds per iteration of every sampler of the plan with which the run began.
        ids: Original ids of each of them, by split.
    """

    shares: tuple[int, ...]
    ids: Mapping[str, Sequence[np.ndarray]]

    @classmethod
    def of(cls, plan: Plan, graph: PartitionedGraph) -> SeedAssignment:
        """Deal a graph's splits to the samplers of a plan."""
        mix = plan.seeds
        shares = whole_seed_counts(mix, plan.job.samplers_per_trainer)
        ids: dict[str, Sequence[np.ndarray]] = {}
        for node in graph.manifest.nodes:
            if not node.splits:
                continue
            for split in node.splits:
                parts = [
                    np.asarray(part.original_ids(node.name))[part.split(node.name, split)]
                    for part in map(graph.part, range(graph.num_parts))
                ]
                ids[split] = assign_seeds(parts, mix, shares, plan.seed)
            # A job trains on nodes of one type.
            break
        return cls(shares, ids)

    def fingerprint(self) -> str:
        """Sixteen hex digits that differ when a batch has other seeds."""
        digest = hashlib.sha256(repr(self.shares).encode())
        for split, own in sorted(self.ids.items()):
            for ids in own:
                digest.update(f"{split} {len(ids)} ".encode() + np.ascontiguousarray(ids).tobytes())
        return digest.hexdigest()[:16]


class TaskConfigs:
    """Answers what to tell each task.

    Args:
        plan: The plan.
        nodes: Machines, in the order of its cluster.
        graph: The graph, as the driver sees it.
        tls: Whether connections between machines are encrypted.
        config: What the user set for the script.
        iterations: After so many the run ends; none for all.
        checkpoint_every: Steps between checkpoints; 0 for none.
        resume: Checkpoint to go on from; none to begin.
        began: The plan with which the run began, if it goes on with another: who took which seeds.
        retry_budget_s: How long to wait for a lost store or sampler to be replaced; 0 to fail at
            once.
        allow_nan: Whether losses and gradients may be infinite or not a number.
        follows_script: Whether the run ends at once if the script asks for another batch size.
    """

    def __init__(
        self,
        plan: Plan,
        nodes: Sequence[Node],
        graph: PartitionedGraph,
        tls: bool,
        config: Mapping[str, Any],
        iterations: int | None = None,
        checkpoint_every: int = 0,
        resume: Checkpoint | None = None,
        began: Plan | None = None,
        retry_budget_s: float = PATIENCE_S,
        allow_nan: bool = False,
        follows_script: bool = False,
    ) -> None:
        self._iterations = iterations
        self._retry_budget_s, self._allow_nan = retry_budget_s, allow_nan
        self._follows_script = follows_script
        self._checkpoint_every, self._resume = checkpoint_every, resume
        self._plan, self._nodes, self._tls, self._config = plan, nodes, tls, config
        self._assignment = SeedAssignment.of(began or plan, graph)
        self._lanes = divide_lanes(self._assignment.shares, len(plan.placed.samplers))
        self._keys = make_keys(nodes, tls)
        self._ports: dict[int, Mapping[int, int]] = {}
        self._server_ports: dict[int, int] = {}
        self._folders: dict[int, str] = {}
        self.ranks = {w: rank for rank, w in enumerate(plan.placed.ring_order)}

    def keys(self, machine: int) -> bytes:
        """Credentials of a machine's tasks."""
        return self._keys[machine]

    def note_folder(self, machine: int, folder: str) -> None:
        """Where the graph is on a machine."""
        self._folders[machine] = folder

    def note_ports(self, machine: int, ports: Mapping[int, int]) -> None:
        """Where the store of a machine listens, by part."""
        self._ports[machine] = ports

    def some_port(self, machine: int) -> int | None:
        """Where the store of a machine listens; none if it has no part."""
        return next(iter(self._ports.get(machine, {}).values()), None)

    def note_server_port(self, server: int, port: int) -> None:
        """Where a parameter server listens."""
        self._server_ports[server] = port

    def store(self, machine: int) -> dict[str, Any]:
        """Fields of a `StoreConfig`."""
        return {
            "graph": self._folders[machine],
            "parts": {
                part: 0 for part, home in enumerate(self._plan.part_machines) if home == machine
            },
            "host": self._nodes[machine].address,
            "tls": self._tls,
            "verify": True,
        }

    def sampler(self, sampler: int) -> tuple[dict[str, Any], dict[str, list[bytes]]]:
        """Fields of a `SamplerConfig`, and seeds of its lanes by split."""
        machine = self._plan.placed.samplers[sampler]
        settings = {
            "graph": self._folders[machine],
            "stores": self._stores_for(machine),
            "tls": self._tls,
        }
        own = self._lanes_of(sampler)
        return settings, {
            split: [saved(ids[lane]) for lane in own] for split, ids in self._assignment.ids.items()
        }

    def server(self, server: int) -> dict[str, Any]:
        """Fields of a `ServerConfig`."""
        return {
            "num_trainers": self._plan.job.trainers,
            "num_threads": max(1, int(self._plan.job.demand(Role.SERVER).get("cpu", 1))),
            "host": self._nodes[self._plan.placed.servers[server]].address,
            "tls": self._tls,
        }

    def trainer(self, trainer: int) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Fields of a `RunContext`, and files of seeds by name."""
        job, machine = self._plan.job, self._plan.placed.trainers[trainer]
        per_trainer = job.samplers_per_trainer
        own = range(trainer * per_trainer, (trainer + 1) * per_trainer)
        names = [f"sampler{trainer}.{i}" for i in range(per_trainer)]
        files = {}
        for split, ids in self._assignment.ids.items():
            lanes = {name: self._lanes_of(s) for name, s in zip(names, own, strict=True)}
            lanes[f"trainer{trainer}"] = [lane for each in lanes.values() for lane in each]
            for name, taken in lanes.items():
                together = np.sort(np.concatenate([ids[lane] for lane in taken]))
                files[f"{split}-{name}.npy"] = saved(together)
        context = {
            "parts": self._folders[machine],
            "stores": self._stores_for(machine),
            "own_stores": self._stores_for(machine, own=True),
            "servers": self._servers(),
            "tls": self._tls,
            "retry_budget_s": self._retry_budget_s,
            "allow_nan": self._allow_nan,
            "follows_script": self._follows_script,
            "num_samplers": per_trainer,
            "rank": self.ranks[trainer],
            "world_size": job.trainers,
            "config": dict(self._config),
            "iterations": self._iterations,
            "checkpoint_every": self._checkpoint_every,
            "plan": self._plan.fingerprint(),
            "lanes": self._assignment.fingerprint(),
            "samplers": names,
            "samplers_per_trainer": per_trainer,
            "window": job.window or _UNLIMITED_WINDOW,
            "lane_counts": self._lanes,
            "shares": self._assignment.shares,
            "counts": {
                split: [len(one) for one in ids] for split, ids in self._assignment.ids.items()
            },
        }
        return context, files

    def resume(self) -> dict[str, bytes]:
        """Files of the checkpoint that trainers go on from, by name; none if they begin."""
        found = self._resume
        paths = () if found is None else (found.path, found.sidecar_path)
        return {path.name: path.read_bytes() for path in paths}

    def environment(
        self, trainer: int, port: int, gpus: Mapping[int, Sequence[str]]
    ) -> dict[str, str]:
        """What torchrun would set.

        Args:
            trainer: Which trainer.
            port: Where trainers meet, on the machine of rank 0.
            gpus: That Ray gave to each trainer.
        """
        placed = self._plan.placed
        machine = placed.trainers[trainer]
        beside = [w for w in placed.ring_order if placed.trainers[w] == machine]
        machines = list(dict.fromkeys(placed.trainers[w] for w in placed.ring_order))
        first = self._nodes[placed.trainers[placed.ring_order[0]]]
        number = str(machines.index(machine))
        num_threads = max(1, int(self._plan.job.demand(Role.TRAINER).get("cpu", 1)))
        variables = {
            "MASTER_ADDR": first.address,
            "MASTER_PORT": str(port),
            "RANK": str(self.ranks[trainer]),
            "WORLD_SIZE": str(len(placed.trainers)),
            "LOCAL_RANK": str(beside.index(trainer)),
            "LOCAL_WORLD_SIZE": str(len(beside)),
            "GROUP_RANK": number,
            "NODE_RANK": number,
            "OMP_NUM_THREADS": str(num_threads),
        }
        # A script takes the device with its LOCAL_RANK, so trainers of a machine see them all.
        seen = list(dict.fromkeys(gpu for w in beside for gpu in gpus.get(w, ())))
        if seen:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(seen)
        return variables

    def _lanes_of(self, sampler: int) -> list[int]:
        first = sum(self._lanes[:sampler])
        return list(range(first, first + self._lanes[sampler]))

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
        """Stores of all parts but the machine's own, which are mapped; or of those alone."""
        return [
            {
                "part": part,
                "task": f"store{home}",
                "machine": self._nodes[home].machine,
                "host": self._nodes[home].address,
                "port": self._ports[home][part],
            }
            for part, home in enumerate(self._plan.part_machines)
            if (home == machine) == own
        ]


def make_keys(nodes: Sequence[Node], tls: bool) -> list[bytes]:
    """Credentials of every machine's tasks, as they are written to a file."""
    token = Secret.random()
    authority = Authority(datetime.now(UTC), _CERTIFICATE_LIFETIME) if tls else None
    keys = []
    with run_folder() as folder:
        for number, node in enumerate(nodes):
            identity = None if authority is None else authority.issue(node.machine, [node.address])
            path = Path(folder) / str(number)
            Credentials(token, identity).save(path)
            keys.append(path.read_bytes())
    return keys


def saved(ids: np.ndarray) -> bytes:
    """An array as `numpy.save` writes it."""
    file = io.BytesIO()
    np.save(file, np.asarray(ids, np.int64))
    return file.getvalue()
