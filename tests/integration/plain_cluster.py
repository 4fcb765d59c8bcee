"""Trainers and samplers of a run as plain processes: what shells do on a cluster, without one."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.sampler_worker.config import StoreAddress
from headrace.graph.sampler_worker.seed_assignment import assign_seeds, whole_seed_counts
from headrace.graph.store.config import StoreConfig
from headrace.prefork.client import ForkLease
from headrace.rpc.config import TaskAddress
from headrace.rpc.credentials import Credentials, Secret
from headrace.runtime.protocol.run_context import CONTEXT_VARIABLE, RunContext
from headrace.runtime.protocol.sampler_requests import RequestServer, StartSamplers
from headrace.runtime.workers.task_process import TaskProcess
from headrace.training.parameter_server.types import ServerConfig
from tests.support.waiting import eventually

PATIENCE_S = 240.0


_leases: dict[str, ForkLease] = {}
_leasing = threading.Lock()


def lease(preload: str) -> ForkLease:
    """A fork server for all tests of this process, which ends with it."""
    with _leasing:
        return _leases.get(preload) or _leases.setdefault(preload, ForkLease(preload))


def seeds_by_part(folder: Path, split: str) -> list[np.ndarray]:
    """Original ids of a split's seeds in each part."""
    graph = open_graph(folder)
    node_type = graph.node_types[0]
    return [
        graph.part(p).original_ids(node_type)[graph.part(p).split(node_type, split)]
        for p in range(graph.num_parts)
    ]


class PlainCluster:
    """Processes of a run on this machine.

    Args:
        folder: For files.
        graph: Directory of the parts; their splits are dealt.
        mix: Seeds per iteration, by shard and part.
        samplers_per_trainer: How many.
        far: Whether samplers are reached as on other machines.
        shards: How many each sampler has; none for one each.
        **fields: More of `RunContext`.
    """

    def __init__(
        self,
        folder: Path,
        graph: Path,
        mix: np.ndarray,
        samplers_per_trainer: int = 1,
        far: bool = False,
        shards: tuple[int, ...] = (),
        **fields: Any,
    ) -> None:
        self.folder, self.graph, self.far = folder, graph, far
        self._shards = shards or (1,) * len(mix)
        self.num_trainers = len(self._shards) // samplers_per_trainer
        self._per_trainer = samplers_per_trainer
        self._processes: list[TaskProcess] = []
        self._is_closed = False
        self._servers: list[RequestServer] = []
        self._stores: dict[int, StoreAddress] = {}
        self._store_processes: dict[int, TaskProcess] = {}
        folder.mkdir(parents=True, exist_ok=True)
        Credentials(Secret.random()).save(folder / "keys")
        self.seeds_per_iteration = whole_seed_counts(mix, samplers_per_trainer)
        self.assignment = {
            split: assign_seeds(seeds_by_part(graph, split), mix, self.seeds_per_iteration)
            for split in ("train", "val")
        }
        self._fields = {
            "credentials": folder / "keys",
            "parts": graph,
            "seeds": folder,
            "output": folder,
            "world_size": self.num_trainers,
            "samplers_per_trainer": samplers_per_trainer,
            "seeds_per_iteration": self.seeds_per_iteration,
            "counts": {split: tuple(map(len, own)) for split, own in self.assignment.items()},
            "shard_counts": shards,
            **fields,
        }

    def start_servers(self, num: int) -> None:
        """Let trainers learn by parameter servers; they end with `run`."""
        places = []
        for number in range(num):
            task = f"ps{number}"
            config = ServerConfig(
                task=task,
                num_trainers=self.num_trainers,
                credentials=self.folder / "keys",
                ready=self.folder / f"ready-{task}",
                tls=False,
            )
            file = self.folder / f"{task}.json"
            file.write_text(config.model_dump_json())
            module = [
                sys.executable,
                "-m",
                "headrace.training.parameter_server",
                "--config",
                str(file),
            ]
            self._start(module, task)
            assert eventually(config.ready.exists)
            port = json.loads(config.ready.read_text())["port"]
            places.append(TaskAddress(task=task, machine="m1", host="127.0.0.1", port=port))
        self._fields["servers"] = tuple(places)

    def start_stores(self) -> None:
        """Let stores serve all parts, and be waited for; they end with `run`."""
        for part in range(open_graph(self.graph).num_parts):
            self.start_store(part)
        # As if the first part was on the machine of all trainers.
        own, *stores = self._stores.values()
        self._fields |= {
            "stores": tuple(stores),
            "own_stores": (own,),
            "retry_budget_s": PATIENCE_S,
        }

    def start_store(self, part: int) -> None:
        """Start the store of a part; if there was one, kill it and start another in its place."""
        there, ready = self._stores.get(part), self.folder / f"ready-store{part}"
        if there is not None:
            os.kill(self._store_processes[part].pid, signal.SIGKILL)
            self._store_processes[part].end()
            ready.unlink()
        config = StoreConfig(
            graph=self.graph,
            part=part,
            credentials=self.folder / "keys",
            ready=ready,
            port=0 if there is None else there.port,
            tls=False,
            embedding_folder=self.folder / "embeddings",
        )
        file = self.folder / f"store{part}.json"
        file.write_text(config.model_dump_json())
        module = [sys.executable, "-m", "headrace.graph.store", "--config", str(file)]
        self._store_processes[part] = self._start(module, f"store{part}")
        assert eventually(ready.exists)
        port = json.loads(ready.read_text())["port"]
        self._stores[part] = StoreAddress(
            part=part, task=f"store{part}", machine="m1", host="127.0.0.1", port=port
        )

    def run(
        self,
        script: Path,
        *arguments: str,
        environment: Mapping[str, str] = {},
        code: int = 0,
    ) -> list[str]:
        """Run a script on all trainers, which must end with a code; what each printed."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        torchrun = {
            "WORLD_SIZE": str(self.num_trainers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "LOCAL_RANK": "0",
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        running = []
        try:
            for trainer in range(self.num_trainers):
                context = self._write_context(trainer)
                begin = [sys.executable, "-m", "headrace.runtime.trainer", str(os.getpid())]
                variables = {CONTEXT_VARIABLE: str(context), "RANK": str(trainer), **torchrun}
                words = [*begin, "m1", str(script), *arguments]
                running.append(self._start(words, f"trainer{trainer}", variables))
            assert eventually(lambda: all(process.code is not None for process in running))
            logs = [self.folder / f"trainer{n}.log" for n in range(self.num_trainers)]
            texts = [log.read_text() for log in logs]
            codes = [process.code for process in running]
            assert codes == [code] * self.num_trainers, "\n".join(texts)
            return texts
        finally:
            self.close()

    def close(self) -> None:
        """End everything."""
        self._is_closed = True
        for server in self._servers:
            server.close()
        for process in self._processes:
            process.end(0.0)

    def _write_context(self, trainer: int) -> Path:
        first = trainer * self._per_trainer
        names = [f"sampler{trainer}.{i}" for i in range(self._per_trainer)]
        begins = np.cumsum([0, *self._shards])[first : first + self._per_trainer + 1]
        for split, own in self.assignment.items():
            mine = own[begins[0] : begins[-1]]
            np.save(self.folder / f"{split}-trainer{trainer}.npy", np.sort(np.concatenate(mine)))
            for name, (begin, end) in zip(names, pairwise(begins), strict=True):
                for shard, seeds in enumerate(own[begin:end]):
                    np.save(self.folder / f"{split}-{name}-{shard}.npy", seeds)
        asked = self.folder / f"ask{trainer}"
        self._servers.append(RequestServer(asked, self._start_samplers))
        context = RunContext(
            machine="m1",
            messages=self.folder / "nobody",
            task=f"trainer{trainer}",
            rank=trainer,
            requests=asked,
            samplers=tuple(names),
            **self._fields,
        )
        path = self.folder / f"context{trainer}.json"
        path.write_text(context.model_dump_json())
        return path

    def _start_samplers(self, request: dict[str, Any]) -> dict[str, Any]:
        wanted = StartSamplers.model_validate(request)
        places = []
        for config, given in zip(wanted.configs, wanted.seeds, strict=True):
            task = config["task"]
            seeds = self.folder / f"{wanted.split}-{task}-0.npy"
            further = [
                {**shard, "seeds": str(self.folder / f"{wanted.split}-{task}-{number}.npy")}
                for number, shard in enumerate(config["further"], 1)
            ]
            if given is not None:
                seeds = self.folder / f"given-{task}.npy"
                seeds.write_bytes(given.read_bytes())
            ready, path = self.folder / f"ready-{task}", self.folder / f"meet-{task}"
            whole = {
                **config,
                "graph": str(self.graph),
                "seeds": str(seeds),
                "further": further,
                "credentials": str(self.folder / "keys"),
                "tls": False,
                "listen": {"ready": str(ready), **({} if self.far else {"path": str(path)})},
            }
            file = self.folder / f"{task}.json"
            file.write_text(json.dumps(whole))
            module = [sys.executable, "-m", "headrace.graph.sampler_worker", "--config", str(file)]
            self._start(module, task)
            assert eventually(ready.exists)
            port = json.loads(ready.read_text())["port"]
            far = {"host": "127.0.0.1", "port": port, "task": task, "machine": "m2"}
            places.append(far if self.far else {"socket": str(path)})
        return {"places": places}

    def _start(
        self, command: list[str], name: str, variables: Mapping[str, str] = {}
    ) -> TaskProcess:
        log = self.folder / f"{name}.log"
        environment = {**os.environ, **variables, "PYTHONUNBUFFERED": "1"}
        warm = lease("graph" if command[2].startswith("headrace.graph.") else "train")
        # Not added to what another run has left there.
        log.unlink(missing_ok=True)
        process = TaskProcess(command, log, environment, lease=warm)
        self._processes.append(process)
        if self._is_closed:
            # Asked for by a trainer that ended meanwhile.
            process.end(0.0)
        return process
