"""`exact`: placement with the smallest largest NIC load, proven by CP-SAT, for small clusters.

NIC load depends only on task counts per machine if samplers feed trainers of their own machine as
far as the counts allow. This is always possible: a machine has either surplus samplers or free
sampler slots, never both, and surpluses pair up across machines. A model of counts is therefore
exact and much smaller than a model of tasks; individual tasks are assigned afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from headrace.core.errors import MissingExtraError, SpecError
from headrace.core.job import Job
from headrace.core.placement import Placement
from headrace.core.profile import Problem
from headrace.planner.cost.nic_loads import LoadModel, build_load_model
from headrace.planner.cost.seed_mix import local_first_seeds
from headrace.planner.cost.traffic_matrix import traffic_of
from headrace.planner.methods._base import PlacementMethod
from headrace.planner.methods.bin_packing import Counts, Room, give_identities, num_fitting
from headrace.planner.methods.by_speed import Found, search_by_speed
from headrace.planner.methods.ifs import Ifs

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

TIME_LIMIT_S = 60.0
"""Default time limit of CP-SAT; the paper's settings take well under a second."""

_UNITS = 1e11
"""Load units per load of a known placement.

The rounding error is at most (tasks per machine) / 1e11 of the objective, below `_PROVEN`, and sums
fit into 64 bits.
"""

_PROVEN = 1e-9
"""Relative distance of objective and bound below which a placement is optimal."""


@dataclass(frozen=True)
class Certified:
    """A placement and its optimality bound.

    Attributes:
        placement: Machine of each task.
        objective_s: Largest NIC load in seconds per iteration.
        bound_s: Lower bound over all placements.
        proven: Whether objective and bound are equal to within 1e-9.
    """

    placement: Placement
    objective_s: float
    bound_s: float
    proven: bool


class Exact(PlacementMethod):
    """Minimises the objective over all placements (uniform seed mix)."""

    name: ClassVar[str] = "exact"

    def place(self, problem: Problem, seed: int) -> Placement:
        """See `PlacementMethod.place`; deterministic unless the time limit is reached."""

        def search(limited: Problem) -> Found:
            certified = solve(limited, seed=seed)
            return Found([certified.placement], certified.bound_s)

        return search_by_speed(problem, search, local_seeds=False).placements[0]


def solve(
    problem: Problem,
    *,
    local_seeds: bool = False,
    seed: int = 0,
    time_limit_s: float = TIME_LIMIT_S,
) -> Certified:
    """Find a placement with the smallest largest NIC load and prove it.

    The search uses one worker and a fixed seed; it is deterministic unless the time limit is
    reached. After `time_limit_s` the best placement and bound so far are returned. `local_seeds` is
    not supported with a measured traffic matrix, where loads depend on more than counts.

    Raises:
        MissingExtraError: OR-tools is not installed.
        SpecError: Local seeds with a measured matrix.
        InfeasibleError: The job does not fit.
    """
    start = Ifs().place(problem, seed)
    if local_seeds and problem.profile.store_traffic.matrix:
        raise SpecError(
            "the method exact does not support local seeds with a measured traffic matrix",
            "use the method anneal, or a uniform seed mix",
        )
    cp = _import_cp_model()
    loads = build_load_model(problem, local_seeds=local_seeds)
    start_s = _largest_load_s(problem, start, local_seeds)
    if start_s == 0:  # nothing crosses the network
        return Certified(start, 0.0, 0.0, True)
    model = _Model(cp, loads, Room.of(problem.cluster, problem.job), start_s / _UNITS)
    model.start_from(start)
    solver = cp.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_time_in_seconds = time_limit_s
    # Presolve of OR-tools 9.15 reports feasible models as infeasible (google/or-tools#5274) and
    # certifies wrong optima (#5293). These models are faster without it.
    solver.parameters.cp_model_presolve = False
    status = solver.solve(model.cp_model)
    bound_s = max(0.0, solver.best_objective_bound) * start_s / _UNITS
    if status == cp.UNKNOWN:
        return Certified(start, start_s, min(bound_s, start_s), False)
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        raise AssertionError("CP-SAT found no placement although one exists; this is a bug")
    placement = _placement(model.counts(solver), problem.job)
    objective_s = _largest_load_s(problem, placement, local_seeds)
    bound_s = min(bound_s, objective_s)
    return Certified(placement, objective_s, bound_s, objective_s <= bound_s * (1 + _PROVEN))


def _import_cp_model() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise MissingExtraError(
            "the method exact needs OR-tools, which is not installed",
            "pip install 'headrace[exact]', or use the method anneal",
        ) from None
    return cp_model


def _largest_load_s(problem: Problem, placement: Placement, local_seeds: bool) -> float:
    seeds = local_first_seeds(problem, placement) if local_seeds else problem.uniform_seeds
    load_in, load_out = traffic_of(problem, placement, seeds).loads_s(problem.cluster)
    return float(max(load_in.max(), load_out.max()))


class _Model:
    """CP-SAT model of task counts per machine and the resulting largest load.

    Coefficients are rounded down, so a bound of the rounded loads is a bound of the true loads.
    """

    def __init__(self, cp: Any, loads: LoadModel, room: Room, unit_s: float) -> None:
        self.cp_model: cp_model.CpModel = cp.CpModel()
        self._loads, self._unit_s = loads, unit_s
        model, num = self.cp_model, loads.num_machines
        num_samplers = loads.num_trainers * loads.per_trainer
        self.samplers = [model.new_int_var(0, num_samplers, f"samplers{m}") for m in range(num)]
        self.trainers = [
            model.new_int_var(0, loads.num_trainers, f"trainers{m}") for m in range(num)
        ]
        self.servers = [model.new_int_var(0, loads.num_servers, f"servers{m}") for m in range(num)]
        self._largest = model.new_int_var(0, int(_UNITS) + 1, "largest load")
        model.add(sum(self.samplers) == num_samplers)
        model.add(sum(self.trainers) == loads.num_trainers)
        model.add(sum(self.servers) == loads.num_servers)
        for m in range(num):
            self._fit(room, m)
            self._bound_loads(m)
        self._order_equal_machines(room)
        model.minimize(self._largest)

    def start_from(self, placement: Placement) -> None:
        """Add a placement as a solution hint."""
        for variables, machines in (
            (self.samplers, placement.samplers),
            (self.trainers, placement.trainers),
            (self.servers, placement.servers),
        ):
            numbers = np.bincount(np.array(machines, dtype=np.int64), minlength=len(variables))
            for variable, number in zip(variables, numbers, strict=True):
                self.cp_model.add_hint(variable, int(number))

    def counts(self, solver: cp_model.CpSolver) -> Counts:
        """Task counts of the solution."""
        return Counts(
            *(
                np.array([solver.value(variable) for variable in variables], dtype=np.int64)
                for variables in (self.samplers, self.trainers, self.servers)
            )
        )

    def _fit(self, room: Room, m: int) -> None:
        """Constrain a machine's resources, including fractions."""
        loads, model, free = self._loads, self.cp_model, room.free[m]
        num_samplers = loads.graph_in.shape[1] - 1
        trainers, servers = np.arange(loads.num_trainers + 1), np.arange(loads.num_servers + 1)
        left = free - trainers[:, None, None] * room.trainer - servers[None, :, None] * room.server
        fits = np.floor(np.clip(num_fitting(left, room.sampler), -1, num_samplers)).astype(int)
        most = model.new_int_var(0, num_samplers, f"most samplers{m}")
        rows = [
            (int(w), int(p), int(fits[w, p])) for w, p in zip(*np.nonzero(fits >= 0), strict=True)
        ]
        model.add_allowed_assignments([self.trainers[m], self.servers[m], most], rows)
        model.add(self.samplers[m] <= most)

    def _bound_loads(self, m: int) -> None:
        loads, model = self._loads, self.cp_model
        samplers, trainers, servers = self.samplers[m], self.trainers[m], self.servers[m]
        places = loads.per_trainer * trainers
        local = model.new_int_var(0, loads.num_trainers * loads.per_trainer, f"local{m}")
        model.add(local <= samplers)
        model.add(local <= places)
        shards: Any = 0
        if loads.num_servers:
            together = model.new_int_var(0, loads.num_servers * loads.num_trainers, f"pairs{m}")
            model.add_multiplication_equality(together, [servers, trainers])
            shards = servers * loads.num_trainers + trainers * loads.num_servers - 2 * together
        ring = self._ring_passes(m) if loads.ring_in[m] > 0 else 0
        for graph, batch, sync, around, apart in (
            (loads.graph_in, loads.batch_in, loads.sync_in, loads.ring_in, places - local),
            (loads.graph_out, loads.batch_out, loads.sync_out, loads.ring_out, samplers - local),
        ):
            model.add(
                self._graph_load(samplers, graph[m], m)
                + self._units(batch[m]) * apart
                + self._units(sync[m]) * shards
                + self._units(around[m]) * ring
                <= self._largest
            )

    def _graph_load(self, samplers: Any, table: np.ndarray, m: int) -> Any:
        """Load by number of samplers: linear for a uniform seed mix, else a table lookup."""
        steps = np.diff(table)
        if len(steps) and np.ptp(steps) <= 1e-12 * np.abs(table).max():
            first, step = self._units(table[0]), self._units(float(steps.mean()))
            return first - 1 + step * samplers
        units = [self._units(value) for value in table]
        load = self.cp_model.new_int_var(min(units), max(units), f"graph{m}")
        self.cp_model.add_element(samplers, units, load)
        return load

    def _ring_passes(self, m: int) -> Any:
        """Whether the ring enters and leaves a machine: it hosts some but not all trainers."""
        model, trainers = self.cp_model, self.trainers[m]
        some, all_here = model.new_bool_var(f"some{m}"), model.new_bool_var(f"all{m}")
        num = self._loads.num_trainers
        model.add(trainers >= 1).only_enforce_if(some)
        model.add(trainers == 0).only_enforce_if(~some)
        model.add(trainers == num).only_enforce_if(all_here)
        model.add(trainers <= num - 1).only_enforce_if(~all_here)
        return some - all_here

    def _order_equal_machines(self, room: Room) -> None:
        """Symmetry breaking: of identical machines, the first hosts the most tasks."""
        loads = self._loads
        by_kind: dict[bytes, int] = {}
        for m in range(loads.num_machines):
            incoming = (loads.graph_in[m], loads.batch_in[m], loads.sync_in[m], loads.ring_in[m])
            outgoing = (
                loads.graph_out[m],
                loads.batch_out[m],
                loads.sync_out[m],
                loads.ring_out[m],
            )
            figures = (room.free[m], *incoming, *outgoing)
            key = b"".join(np.asarray(figure).tobytes() for figure in figures)
            if key in by_kind:
                self.cp_model.add(self._rank(by_kind[key]) >= self._rank(m))
            by_kind[key] = m

    def _rank(self, m: int) -> Any:
        trainers, servers = self._loads.num_trainers + 1, self._loads.num_servers + 1
        return (self.samplers[m] * trainers + self.trainers[m]) * servers + self.servers[m]

    def _units(self, load_s: float) -> int:
        return int(np.floor(load_s / self._unit_s))


def _placement(counts: Counts, job: Job) -> Placement:
    order = np.arange(len(counts.samplers))
    trainers, samplers = give_identities(counts, order, job.samplers_per_trainer)
    return Placement(
        samplers=tuple(samplers.ravel().tolist()),
        trainers=tuple(trainers.tolist()),
        servers=tuple(np.repeat(order, counts.servers).tolist()),
    )
