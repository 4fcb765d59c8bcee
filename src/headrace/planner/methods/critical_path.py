"""Critical path of a placement: the cost of the paper's search (DGTP, eqs 26-27)."""

from __future__ import annotations

import numpy as np

from headrace.core.job import Role
from headrace.core.placement import Placement
from headrace.core.profile import Problem
from headrace.core.tasks import ROLES, EdgeKind
from headrace.planner.methods.critical_path_kernel import (
    PathModel,
    PathScratch,
    draw_path_volumes,
    path_length_s,
)
from headrace.simulator import build_instance

PATH_ITERATIONS = 20
"""Iterations of the paper's DAG (section VI-A)."""

ROUNDING = 1e-9
"""Relative capacity tolerance for rounding, as in `Placement.check`."""


class CriticalPath:
    """Critical path of any placement of one job.

    Volumes are drawn once, as in a simulation with the same seed, so placements are compared under
    equal traffic; task times are means. Degrees are per iteration: in-degree of the receiver,
    out-degree of the sender. Of a ring's 2(W-1) chunks per trainer only the W that can be in
    transit together count. With constant task times the path is an upper bound of the makespan
    under `oes` (Theorem 3).
    """

    def __init__(
        self,
        problem: Problem,
        *,
        num_iterations: int = PATH_ITERATIONS,
        seed: int = 0,
    ) -> None:
        self.model = _model_of(problem, problem.uniform_seeds, num_iterations, seed)
        self.scratch = _scratch_of(self.model)

    def length_s(self, placement: Placement) -> float:
        """Longest weighted path over all iterations."""
        machines = np.array(placement.samplers + placement.trainers + placement.servers, np.int32)
        return float(path_length_s(self.model, machines, self.scratch))


def _model_of(problem: Problem, seeds: np.ndarray, num_iterations: int, seed: int) -> PathModel:
    cluster, job, profile = problem
    num_machines, num_samplers, num_trainers = cluster.num_machines, job.num_samplers, job.trainers
    # Task and edge numbers do not depend on placement, so any placement gives the volumes.
    instance, graph = build_instance(
        problem, None, seeds=seeds, num_iterations=num_iterations, seed=seed
    )
    volumes = np.empty((num_samplers * (num_machines + 1), num_iterations))
    draw_path_volumes(
        instance.seed,
        instance.edge_bytes,
        instance.edge_table,
        instance.tables,
        instance.table_start,
        volumes,
    )
    by_store = volumes[: num_samplers * num_machines].reshape(num_samplers, num_machines, -1)
    means = instance.edge_bytes[: num_samplers * num_machines].reshape(num_samplers, num_machines)
    has_graph = (means > 0).astype(np.float64)
    has_batch = (instance.edge_bytes[graph.kind == EdgeKind.BATCH] > 0).astype(np.float64)
    time_s = np.zeros((len(ROLES), num_machines))
    for code in np.unique(graph.role).tolist():
        time_s[code] = [
            profile.task_time(ROLES[code], machine.kind).mean for machine in cluster.hosts
        ]
    per_sampler = seeds.sum(axis=1)
    time_s[0] *= profile.time_factors(Role.STORE, job, per_sampler)
    is_ring = graph.num_tasks > graph.first_ring
    sync = (graph.kind == EdgeKind.GRADIENT) | (graph.kind == EdgeKind.RING)
    return PathModel(
        nic_out=cluster.nic_out_bytes_per_s(),
        nic_in=cluster.nic_in_bytes_per_s(),
        time_s=time_s,
        sampler_scale=profile.time_factors(Role.SAMPLER, job, per_sampler),
        trainer_scale=profile.time_factors(Role.TRAINER, job, per_sampler),
        store_end_s=np.cumsum(np.tile(time_s[0], (num_iterations, 1)), axis=0),
        graph_bytes=np.ascontiguousarray(by_store.transpose(2, 1, 0)),
        batch_bytes=np.ascontiguousarray(volumes[num_samplers * num_machines :].T),
        graph_total=by_store.sum(axis=2),
        batch_total=volumes[num_samplers * num_machines :].sum(axis=1),
        has_graph=has_graph,
        sends_graph=has_graph.sum(axis=0),
        gets_graph=has_graph.sum(axis=1),
        has_batch=has_batch,
        sync_bytes=float(instance.edge_bytes[sync][0]) if sync.any() else 0.0,
        num_servers=job.num_servers,
        num_steps=2 * (num_trainers - 1) if is_ring else 0,
        ring_width=min(num_trainers, 2 * (num_trainers - 1)) if is_ring else 0,
    )


def _scratch_of(model: PathModel) -> PathScratch:
    num_iterations, num_machines, num_samplers = model.graph_bytes.shape
    num_trainers, num_servers = len(model.trainer_scale), model.num_servers
    rows = max(1, num_servers)
    return PathScratch(
        deg_out=np.zeros(num_machines),
        deg_in=np.zeros(num_machines),
        slow_out=np.zeros(num_machines),
        slow_in=np.zeros(num_machines),
        slow_here=np.zeros(num_samplers),
        graph_weight=np.zeros((num_machines, num_samplers)),
        batch_weight=np.zeros(num_samplers),
        graph_end=np.zeros((num_machines, num_samplers)),
        arrived=np.zeros(num_samplers),
        sampler_time=np.zeros(num_samplers),
        sampler_end=np.zeros(num_samplers),
        batch_end=np.zeros(num_samplers),
        inbox=np.zeros((num_iterations, num_trainers)),
        trainer_end=np.zeros(num_trainers),
        params=np.zeros(num_trainers),
        sync_weight=np.zeros((2, rows, num_trainers)),
        sent=np.zeros((rows, num_trainers)),
        returned=np.zeros((rows, num_trainers)),
        server_end=np.zeros(rows),
        order=np.zeros(num_trainers, dtype=np.int32),
        step_end=np.zeros((model.num_steps, num_trainers)),
        step_sent=np.zeros((model.num_steps, num_trainers)),
        out_bytes=np.zeros(num_machines),
        in_bytes=np.zeros(num_machines),
    )
