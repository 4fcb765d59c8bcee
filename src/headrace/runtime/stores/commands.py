"""Starts, stops and examines store sets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import HeadraceError, RunError, SpecError
from headrace.core.job import Role
from headrace.core.plan import Plan
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.store.client import StoreClient, StoreStatus
from headrace.prefork.identity import python_path
from headrace.rpc.config import TaskAddress
from headrace.rpc.credentials import Credentials
from headrace.rpc.service_process import load_credentials
from headrace.runtime.run_dir.store_set import (
    ServedStore,
    StoreSet,
    StoreSetConfig,
    StoreSetPhase,
    StoreSetState,
)
from headrace.runtime.workers.graph_cache import fingerprint_of

_POLL_INTERVAL_S = 0.05
_STOP_TIMEOUT_S = 60.0
_ANSWER_TIMEOUT_S = 5.0


def local_stores(graph: Path, tls: bool = False) -> StoreSetConfig:
    """Stores of all partitions of a graph in one process on this machine."""
    machine = Machine(name=socket.gethostname(), nic_in=1, nic_out=1)
    num_parts = open_graph(graph).num_parts
    return StoreSetConfig(
        graph=graph.resolve(),
        cluster=Cluster(machines=(machine,)),
        parts=(0,) * num_parts,
        tls=tls,
        is_local=True,
    )


def planned_stores(graph: Path, plan: Plan | Cluster, **settings: Any) -> StoreSetConfig:
    """Stores on the machines of a plan, or of a cluster with a partition per machine.

    Args:
        graph: Directory of a partitioned graph.
        plan: The plan or the cluster.
        **settings: Further fields of `StoreSetConfig`.

    Raises:
        SpecError: The graph is invalid, or has another number of partitions.
    """
    is_plan = isinstance(plan, Plan)
    cluster = plan.cluster if isinstance(plan, Plan) else plan
    parts = plan.part_machines if isinstance(plan, Plan) else tuple(range(cluster.num_machines))
    num_parts = open_graph(graph).num_parts
    if num_parts != len(parts):
        raise SpecError(
            f"{graph} has {num_parts} partitions, the {'plan' if is_plan else 'cluster'} "
            f"{len(parts)} machines for them",
            f"partition the graph with `--parts {len(parts)}`",
        )
    demand = plan.job.demand(Role.STORE) if isinstance(plan, Plan) else {}
    return StoreSetConfig(
        graph=graph.resolve(), cluster=cluster, parts=parts, demand=demand, **settings
    )


def start(store_set: StoreSet, config: StoreSetConfig, log: Callable[[str], None]) -> StoreSetState:
    """Start stores in the background; return once all of them serve.

    Args:
        store_set: Folder of the store set.
        config: What to start.
        log: Called with lines of progress.

    Raises:
        SpecError: The stores are up already, or an input is invalid.
        RunError: A store did not start; nothing is left running.
        KeyboardInterrupt: The same after Ctrl-C.
    """
    fingerprint = fingerprint_of(config.graph)
    assert fingerprint is not None
    lock = store_set.claim(config)
    try:
        first = StoreSetState(
            name=store_set.name,
            graph=config.graph,
            graph_fingerprint=fingerprint,
            tls=config.tls,
            is_local=config.is_local,
            since_s=time.time(),
        )
        store_set.write(first)
        supervisor = _spawn(store_set, lock)
    finally:
        os.close(lock)
    tail = _Tail(store_set.log, log)
    try:
        while store_set.read().phase is StoreSetPhase.STARTING and supervisor.poll() is None:
            tail.poll()
            time.sleep(_POLL_INTERVAL_S)
    except KeyboardInterrupt:
        stop(store_set)
        raise
    state = store_set.read()
    if state.phase is StoreSetPhase.SERVING:
        return state
    supervisor.wait()
    tail.poll()
    error = state.error
    store_set.remove()
    if error is None:
        raise RunError(f"the stores {store_set.name} did not start", "see the lines above")
    raise RunError(error.problem, error.remedy)


def stop(store_set: StoreSet, with_users: bool = True) -> None:
    """End all stores of a store set and remove its folder.

    Args:
        store_set: Folder of the store set.
        with_users: Whether to end them even if runs use them.

    Raises:
        SpecError: There is no such store set, or runs use it.
        RunError: The supervisor does not end.
    """
    state = store_set.read()
    users = store_set.users
    if users and not with_users:
        raise SpecError(
            f"the stores {store_set.name} are in use by {', '.join(users[:5])}",
            "wait until these runs end, or add --force",
        )
    store_set.request_stop()
    end_s = time.monotonic() + _STOP_TIMEOUT_S
    while store_set.is_up:
        if time.monotonic() > end_s:
            raise RunError(
                f"the supervisor of the stores ({state.supervisor}) has not ended after "
                f"{_STOP_TIMEOUT_S:.0f} s",
                "end this process; the stores end with it",
            )
        time.sleep(_POLL_INTERVAL_S)
    store_set.remove()


@dataclass(frozen=True)
class StoreSetView:
    """A store set and its stores' answers.

    Attributes:
        state: State as recorded by the supervisor.
        is_up: Whether the supervisor is alive.
        users: Runs that use the stores.
        answers: What each partition's store answers.
        failures: Why a partition's store does not answer.
    """

    state: StoreSetState
    is_up: bool
    users: Sequence[str]
    answers: Mapping[int, StoreStatus] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)

    @property
    def problems(self) -> list[tuple[str, str]]:
        """Problems and remedies; empty if all stores serve."""
        state = self.state
        again = f"headrace stores up --graph {state.graph} --name {state.name}"
        if state.error is not None:
            return [(state.error.problem, state.error.remedy)]
        if not self.is_up:
            return [(f"the supervisor ({state.supervisor}) has ended, and all stores", again)]
        return [(problem, f"see {state.name}'s logs") for problem in self.failures.values()]


def view(store_set: StoreSet) -> StoreSetView:
    """Read the state of a store set and ask every store."""
    state, is_up = store_set.read(), store_set.is_up
    answers: dict[int, StoreStatus] = {}
    failures: dict[int, str] = {}
    for store in state.stores if is_up else ():
        for part, port in store.ports.items():
            try:
                answers[part] = _ask(store, port, store_set, state.tls)
            except HeadraceError as error:
                failures[part] = error.problem
    return StoreSetView(state, is_up, store_set.users, answers, failures)


def _ask(store: ServedStore, port: int, store_set: StoreSet, tls: bool) -> StoreStatus:
    address = TaskAddress(task=store.task, machine=store.machine, host=store.host, port=port)
    credentials: Credentials = load_credentials(store_set.keys(store.task), tls)
    with StoreClient.connect(address, credentials, _ANSWER_TIMEOUT_S) as client:
        return client.status()


def _spawn(store_set: StoreSet, lock: int) -> subprocess.Popen[bytes]:
    """Start the supervisor, which holds the lock of the folder from now on."""
    command = [sys.executable, "-m", "headrace.runtime.stores", str(store_set.path), str(lock)]
    with store_set.log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(python_path(os.environ))},
            cwd="/",
            pass_fds=(lock,),
            start_new_session=True,
        )


class _Tail:
    """Passes on new lines of a log."""

    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        self._path, self._log, self._offset = path, log, 0

    def poll(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole, newline, _ = data.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for line in whole.decode(errors="replace").splitlines():
            self._log(line)
