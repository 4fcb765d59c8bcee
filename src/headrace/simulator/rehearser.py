"""Simulate one job under many placements, reusing the common input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from headrace.core.errors import SpecError
from headrace.core.placement import Placement, demand_vector, resource_names
from headrace.core.profile import Problem
from headrace.core.tasks import ROLES, EdgeKind
from headrace.costs import edge_volumes, nic_load_s, time_factors
from headrace.policies.flow import FLOW_POLICIES
from headrace.policies.interpreted import CALLER
from headrace.simulator.instance import Instance, build_instance
from headrace.simulator.layout_kernel import lay_out
from headrace.simulator.network import idle_network
from headrace.simulator.pair_kernel import MAXMIN, OES, PRIORITY, interpreted_s, run_pairs
from headrace.simulator.progress_kernel import Fixed, fix, start
from headrace.simulator.rehearse import simulate

_CACHE_LINE = 64

_NUM_CALLS = 13
"""Simulations of a plan's shortlist and prediction, in units of the shortlist's."""

_EDGE_S = 5e-6
"""Seconds per edge to lay out a placement, if interpreted."""

_REWRITTEN = frozenset({"edge_pair", "task_time_s", "task_table", "edge_bytes"})
"""Fields of the kernel input that depend on placement and seed mix; written by `lay_out`."""

_SCRATCH = frozenset({"heap_time", "heap_task"})
"""Fields of the initial progress that are uninitialised."""

_STARTS = frozenset({"item_start"})
"""The field of an idle network that depends on placement; written by `lay_out`."""


class _Block(NamedTuple):
    """Arrays of a kernel's state in contiguous memory, reset by one copy."""

    fields: Any
    live: np.ndarray
    pristine: np.ndarray

    def reset(self) -> None:
        """Restore the initial values of all arrays."""
        np.copyto(self.live, self.pristine)


class Rehearser:
    """Makespans of one job under any placement; equal to those of `simulate`, but faster.

    Placement-dependent fields are rewritten in place. If other fields of the kernel input depend on
    placement, the input is rebuilt instead. See `build_instance` for the arguments.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        seeds: np.ndarray | None = None,
        num_iterations: int | None = None,
        window: int | None = None,
        seed: int = 0,
    ) -> None:
        self._problem = problem
        cluster, job, profile = problem
        names = resource_names(cluster, job)
        self._demands = np.array([demand_vector(job, role, names) for role in ROLES[:4]])
        capacities = cluster.capacities(names)
        self._most = capacities + 1e-9 * np.maximum(capacities, 1)
        self._seeds = problem.uniform_seeds if seeds is None else seeds.copy()

        # Only the layout is needed here.
        instance, self._graph = build_instance(
            problem,
            None,
            seeds=self._seeds,
            num_iterations=num_iterations,
            window=window,
            seed=seed,
        )
        graph = self._graph
        kinds = [machine.kind for machine in cluster.hosts]
        roles = {code: ROLES[code] for code in np.unique(graph.role).tolist()}
        self._time_s = np.zeros((len(ROLES), cluster.num_machines))
        self._table = np.zeros((len(ROLES), cluster.num_machines), dtype=np.int32)
        known = {
            instance.tables[first:last].tobytes(): i
            for i, (first, last) in enumerate(
                zip(instance.table_start[:-1], instance.table_start[1:], strict=True)
            )
        }
        for code, role in roles.items():
            by_kind = {kind: profile.task_time(role, kind) for kind in set(kinds)}
            tables = {
                kind: known[time.variation.factors().tobytes()] for kind, time in by_kind.items()
            }
            self._time_s[code] = [by_kind[kind].mean for kind in kinds]
            self._table[code] = [tables[kind] for kind in kinds]

        self._has_own_seeds = False
        self._is_ring = graph.num_tasks > graph.first_ring
        self._order = tuple(range(job.trainers))
        self._movable = np.repeat([1, 2, 3], [job.num_samplers, job.trainers, job.num_servers])
        self._set_base(instance)

    def makespan_s(
        self, placement: Placement, policy: str, seeds: np.ndarray | None = None
    ) -> float:
        """End of the last task of the last iteration; `seeds` overrides the seed mix.

        Raises:
            SpecError: The policy does not exist, or the placement does not match the job.
            InfeasibleError: The placement exceeds the resources of a machine.
        """
        if len(placement.samplers) + len(placement.trainers) + len(placement.servers) != len(
            self._movable
        ):
            placement.check(self._problem.cluster, self._problem.job)
        machines = np.array(placement.samplers + placement.trainers + placement.servers, np.int32)
        if not self._fits(machines):
            placement.check(self._problem.cluster, self._problem.job)
        return self.makespan_on_s(machines, policy, seeds)

    def makespan_on_s(
        self, machines: np.ndarray, policy: str, seeds: np.ndarray | None = None
    ) -> float:
        """Like `makespan_s`, without checking resources.

        `machines` lists the machine of each sampler, then trainer, then server.

        Raises:
            SpecError: The policy does not exist.
        """
        if policy not in FLOW_POLICIES:
            raise SpecError(
                f"there is no flow policy {policy!r}", f"use one of {', '.join(FLOW_POLICIES)}"
            )
        self._lay_out(machines, seeds)
        code = FLOW_POLICIES[policy].code
        if code not in (OES, MAXMIN, PRIORITY):
            instance, cluster = self._instance, self._problem.cluster
            pace_s = nic_load_s(self._graph, instance.edge_bytes, instance.task_machine, cluster)
            return simulate(replace(self._instance, pace_s=pace_s), policy).makespan_s
        if self._fixed is None or self._progress is None or self._network is None:
            return simulate(self._instance, policy).makespan_s
        self._progress.reset()
        self._network.reset()
        np.copyto(self._network.fields.item_start, self._item_start)
        makespan_s, _ = CALLER.call(
            run_pairs,
            self._fixed,
            self._progress.fields,
            self._network.fields,
            code,
            True if code == OES else None,
            self._no_time,
            self._no_rate,
            estimate_s=interpreted_s(self._instance),
            num_calls=_NUM_CALLS,
        )
        if makespan_s < 0:
            raise AssertionError("the simulation stopped before all tasks were done; this is a bug")
        return float(makespan_s)

    @property
    def is_in_place(self) -> bool:
        """Whether placements are rewritten in place instead of rebuilt."""
        return self._network is not None

    def _fits(self, machines: np.ndarray) -> bool:
        num = self._problem.cluster.num_machines
        if machines.min() < 0 or machines.max() >= num:
            return False
        counts = np.bincount(machines + num * self._movable, minlength=4 * num)[: 4 * num]
        counts[:num] = 1
        return bool((counts.reshape(4, num).T @ self._demands <= self._most).all())

    def _lay_out(self, machines: np.ndarray, seeds: np.ndarray | None) -> None:
        """Update the instance to a placement and seed mix."""
        job, graph = self._problem.job, self._graph
        first, trainers = graph.num_machines, machines[job.num_samplers :][: job.trainers]
        if self._is_ring:
            order = tuple(np.argsort(trainers, kind="stable").tolist())
            if order != self._order:
                self._turn_ring(order)
        here = self._instance.task_machine
        here[first : graph.first_ring] = machines
        if self._is_ring:
            here[graph.first_ring :] = trainers[self._graph.owner[graph.first_ring :]]
        if seeds is not None or not self._has_own_seeds:
            self._lay_out_seeds(self._seeds if seeds is None else seeds)
            self._has_own_seeds = seeds is None
        CALLER.call(
            lay_out,
            here,
            graph.role,
            self._time_s,
            self._table,
            self._scale,
            self._instance.edge_src,
            self._instance.edge_dst,
            self._instance.edge_kind,
            self._instance.task_time_s,
            self._instance.task_table,
            self._edge_pair,
            self._item_start,
            estimate_s=len(self._edge_pair) * _EDGE_S,
        )

    def _lay_out_seeds(self, seeds: np.ndarray) -> None:
        problem, graph = self._problem, self._graph
        np.copyto(self._instance.edge_bytes, edge_volumes(graph, problem, seeds))
        self._scale[:] = time_factors(graph, problem, seeds)

    def _turn_ring(self, order: tuple[int, ...]) -> None:
        """Set another ring order; see `build_task_graph`."""
        graph = self._graph
        follower = np.empty(graph.num_trainers, dtype=np.int64)
        follower[list(order)] = np.roll(order, -1)
        ring = np.flatnonzero(graph.kind == EdgeKind.RING).reshape(-1, graph.num_trainers)
        dst, owner = graph.dst.copy(), graph.owner.copy()
        first = np.sort(graph.dst[ring], axis=1)[:, :1]
        dst[ring] = first + follower
        owner[graph.first_ring] = order[0]
        self._graph = replace(graph, dst=dst, owner=owner)
        self._order = order
        self._set_base(replace(self._instance, edge_dst=dst))

    def _set_base(self, instance: Instance) -> None:
        """Allocate memory for placements of this task graph."""
        self._instance = replace(
            instance,
            task_machine=instance.task_machine.copy(),
            task_time_s=instance.task_time_s.copy(),
            task_table=instance.task_table.copy(),
            edge_bytes=instance.edge_bytes.copy(),
        )
        num = instance.num_machines
        self._edge_pair = np.empty(instance.num_edges, dtype=np.int32)
        self._item_start = np.empty(num * num + 1, dtype=np.int64)
        self._scale = np.ones(instance.num_tasks)
        self._has_own_seeds = False
        self._no_time, self._no_rate = np.empty(0), np.empty((0, 2 * num))
        self._fixed: Fixed | None = None
        self._progress: _Block | None = None
        self._network: _Block | None = None
        one, other = self._probe(0), self._probe(num - 1)
        fixed = fix(one)
        # Allocate as if every edge were a flow.
        network = idle_network(fixed._replace(edge_pair=np.zeros_like(fixed.edge_pair)))
        progress = start(one, False)
        own = fixed._replace(
            edge_pair=self._edge_pair,
            task_time_s=self._instance.task_time_s,
            task_table=self._instance.task_table,
            edge_bytes=self._instance.edge_bytes,
        )
        if (
            _types(own) == _types(fixed)
            and getattr(network, "item_start", np.empty(0)).shape == self._item_start.shape
            and _same(fixed, fix(other), _REWRITTEN)
            and _same(progress, start(other, False), _SCRATCH)
            and _same(network, idle_network(fixed), _STARTS, may_grow=True)
            and _same(network, idle_network(fix(other)), _STARTS, may_grow=True)
        ):
            self._fixed = own
            self._progress, self._network = _in_one_block(progress), _in_one_block(network)

    def _probe(self, machine: int) -> Instance:
        """All tasks except stores on one machine, with its times and distinct volumes."""
        instance, graph = self._instance, self._graph
        machines = np.full_like(instance.task_machine, machine)
        machines[: graph.num_machines] = np.arange(graph.num_machines)
        return replace(
            instance,
            task_machine=machines,
            task_time_s=self._time_s[graph.role, machines],
            task_table=self._table[graph.role, machines],
            edge_bytes=instance.edge_bytes * (1.0 + machine),
        )


def _arrays(fields: Any) -> dict[str, np.ndarray]:
    return {
        name: value for name, value in fields._asdict().items() if isinstance(value, np.ndarray)
    }


def _types(fields: Any) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    return {name: (array.dtype, array.shape) for name, array in _arrays(fields).items()}


def _same(one: Any, other: Any, but: frozenset[str], *, may_grow: bool = False) -> bool:
    """Whether two inputs agree except in `but`; `may_grow` allows longer zero arrays in `one`."""
    mine, theirs = _arrays(one), _arrays(other)
    plain = {name for name in one._fields if name not in mine}
    if any(getattr(one, name) != getattr(other, name) for name in plain):
        return False
    for name in mine.keys() - but:
        a, b = mine[name], theirs[name]
        if may_grow and a.size > b.size and not a.any() and not b.any():
            continue
        if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
            return False
    return True


def _in_one_block(fields: Any) -> _Block:
    """Copy the arrays of a named tuple into contiguous memory; shared arrays stay shared."""
    arrays = {name: array for name, array in _arrays(fields).items() if array.nbytes}
    address = {name: array.__array_interface__["data"][0] for name, array in arrays.items()}
    offsets: dict[int, int] = {}
    size = 0
    for name, array in arrays.items():
        if address[name] not in offsets:
            offsets[address[name]] = size
            size += -(-array.nbytes // _CACHE_LINE) * _CACHE_LINE
    live = np.zeros(size + _CACHE_LINE, dtype=np.uint8)
    live = live[-live.__array_interface__["data"][0] % _CACHE_LINE :][:size]
    moved = {}
    for name, array in arrays.items():
        at = offsets[address[name]]
        moved[name] = live[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
        moved[name][...] = array
    return _Block(fields._replace(**moved), live, live.copy())
