"""Owner-compute: remote rows of planned seeds, second-level clusters, and runs on a testbed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from benchmarks.graph_checks import DATA

FAN_OUTS = [10, 5]
NUM_BATCHES = 20
MODE_B_STEPS = 45

OWNED = ("amazon_computers", "coauthor_cs", "debian_bookworm", "generated:nodes=1e5,edges=2e6")
"""Graphs whose remote rows are counted."""

CLUSTERED = (
    "planetoid/cora.npz",
    "planetoid/citeseer.npz",
    "planetoid/pubmed.npz",
    "amazon_photo",
    "amazon_computers",
)
"""Graphs that are trained with and without second-level clusters."""

NUM_PARTS, NUM_CLUSTERS = 4, 2
TRAIN_SHARE = 0.6
SUB_BATCH, EPOCHS, WIDTH, LR = 32, 10, 64, 0.01


def run_owner(num_graphs: int) -> dict[str, Any]:
    """Remote rows of plans from the graph alone, and planned against assigned seeds."""
    rows = {}
    for name in OWNED[:num_graphs]:
        source = name if name.startswith("generated") else str(DATA / name)
        rows[name] = _owner_row(source)
    return {
        "graphs": rows,
        "over_local_first_worst": max(row["over_local_first"] for row in rows.values()),
        "uniform_over_local_first": [row["uniform_over_local_first"] for row in rows.values()],
        "seeds_apart": max(row["seeds_apart"] for row in rows.values()),
    }


def _owner_row(source: str) -> dict[str, Any]:
    """`partition --cluster`, then `plan --graph`, as README does; other seed mixes beside."""
    from headrace import Cluster, Job, Machine, partition, plan
    from headrace.runtime.controller.task_configs import SeedAssignment

    machines = (
        Machine(
            name="large",
            count=2,
            resources={"cpu": 8, "memory": 64e9},
            nic_in=1.25e9,
            nic_out=1.25e9,
        ),
        Machine(
            name="small",
            count=2,
            resources={"cpu": 8, "memory": 16e9},
            nic_in=1.25e9,
            nic_out=1.25e9,
        ),
    )
    cluster = Cluster(machines=machines)
    job = Job(trainers=4, samplers_per_trainer=2, batch_size=64, iterations=100)
    with tempfile.TemporaryDirectory() as scratch:
        graph = partition(source, Path(scratch) / "parts", cluster)
        made = {
            mix: plan(cluster, job, graph=graph.folder, seed_mix=mix, num_neighbors=given)  # type: ignore[arg-type]
            for mix, given in (("auto", None), ("local-first", FAN_OUTS), ("uniform", FAN_OUTS))
        }
        assignments = {mix: SeedAssignment.of(each, graph) for mix, each in made.items()}
        remote = {
            mix: _remote_rows(graph, each.placed.samplers, assignments[mix])
            for mix, each in made.items()
        }
        planned, assigned = _seeds_by_part(graph, made["auto"], assignments["auto"])
    return {
        "seed_mix": made["auto"].seed_mix_name,
        "remote_rows": remote,
        "over_local_first": remote["auto"] / remote["local-first"],
        "uniform_over_local_first": remote["uniform"] / remote["local-first"],
        "planned_seeds_by_part": planned.sum(axis=0).round(6).tolist(),
        "assigned_seeds_by_part": assigned.sum(axis=0).tolist(),
        "seeds_apart": float(np.abs(planned.sum(axis=0) - assigned.sum(axis=0)).max()),
        "seeds_apart_by_sampler": float(np.abs(planned - assigned).max()),
    }


def _remote_rows(graph: Any, machines: tuple[int, ...], assignment: Any) -> float:
    """Mean feature rows per iteration that samplers read from other machines."""
    from torch import from_numpy

    from headrace import NeighborLoader

    name = next(node.name for node in graph.manifest.nodes if node.splits)
    total, num = 0, 0
    for sampler, (machine, ids) in enumerate(zip(machines, assignment.ids["train"], strict=True)):
        is_typed = len(graph.node_types) > 1 or len(graph.edge_types) > 1
        typed = (name, from_numpy(ids)) if is_typed else from_numpy(ids)
        loader = NeighborLoader(
            graph,
            FAN_OUTS,
            input_nodes=typed,
            batch_size=assignment.seeds_per_iteration[sampler],
            shuffle=True,
            seed=sampler,
        )
        for number, batch in zip(range(NUM_BATCHES), loader, strict=False):
            stores = {each: batch[each] for each in graph.node_types} if is_typed else {name: batch}
            for node_type, store in stores.items():
                ids_new = graph.to_new(node_type, store.n_id.numpy()).astype(np.int64)
                total += int((graph.owner(node_type, ids_new) != machine).sum())
            num = max(num, number + 1)
    return total / num


def _seeds_by_part(graph: Any, made: Any, assignment: Any) -> tuple[np.ndarray, np.ndarray]:
    """Training seeds of an epoch by sampler and partition, planned and assigned."""
    name = next(node.name for node in graph.manifest.nodes if node.splits)
    own = assignment.ids["train"]
    assigned = np.array(
        [
            np.bincount(
                graph.owner(name, graph.to_new(name, ids).astype(np.int64)),
                minlength=graph.num_parts,
            )
            for ids in own
        ]
    )
    planned = made.seeds * (assigned.sum() / made.seeds.sum())
    return planned, assigned


def run_mode_b() -> dict[str, Any]:
    """Mode b of `closed_loop.py` with the planner's choice of seeds and with uniform seeds."""
    import os

    from benchmarks.closed_loop_runs import CORES, GRAPH, MODEL, Setting, Trainings
    from headrace import partition, plan
    from headrace.core.job import Role
    from headrace.testbed import Testbed, take_down
    from tests.support.cluster_bed import trace_of

    setting = Setting.of("b", "ring")
    bed_name = f"owner-{os.getpid()}"
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        partition(GRAPH, scratch / "graph", setting.cluster.num_machines)
        bed = Testbed.up(setting.cluster, bed_name, shaped=True, cores=CORES["b"])
        try:
            trainings = Trainings(bed, setting, scratch / "graph", scratch, 1.0)
            profile = trainings.profile(MODE_B_STEPS)
            job = setting.job.model_copy(update={"model_bytes": profile.model_bytes})
            for mix in ("uniform", "auto"):
                made = plan(
                    setting.cluster,
                    job,
                    profile,
                    policy="priority",
                    seed_mix=mix,
                    graph=scratch / "graph",
                    num_neighbors=MODEL["fanouts"],  # type: ignore[arg-type]
                )
                done = trainings.run(mix, made, "ours", MODE_B_STEPS)
                trace = trace_of(Path(done["folder"]))
                flows, roles = trace.flows, np.array(trace.task_roles)
                from_stores = roles[flows.src] == Role.STORE
                iterations = 1 + int(flows.iteration.max())
                rows[mix] = {
                    "seed_mix": made.seed_mix_name,
                    "iteration_s": done["measured_s"],
                    "predicted_s": made.time_s,
                    "store_bytes": float(flows.num_bytes[from_stores].sum()) / iterations,
                }
        finally:
            take_down(bed_name)
    return {
        **rows,
        "saved": 1 - rows["auto"]["iteration_s"] / rows["uniform"]["iteration_s"],
        "bytes_saved": 1 - rows["auto"]["store_bytes"] / rows["uniform"]["store_bytes"],
    }


def run_clusters(num_graphs: int, num_seeds: int, epochs: int = EPOCHS) -> dict[str, Any]:
    """Input nodes per sub-batch and accuracy with a mix of all clusters and with ranges of them."""
    rows = {name: _cluster_row(name, num_seeds, epochs) for name in CLUSTERED[:num_graphs]}
    return {
        "graphs": rows,
        "most_nodes_saved": max(row["nodes_saved"] for row in rows.values()),
        "is_safe": all(row["is_within_noise"] for row in rows.values()),
    }


def _cluster_row(name: str, num_seeds: int, epochs: int) -> dict[str, Any]:
    import torch
    from torch_geometric.data import Data

    from headrace import partition
    from headrace.graph.sources.resolve import open_source

    source = open_source(str(DATA / name), 0)
    table = source.nodes[0]
    columns = {
        c.name: torch.from_numpy(np.array(c.read(0, table.num_nodes))) for c in table.columns
    }
    ends = np.concatenate([np.stack(pair) for pair in source.edges[0].chunks()], axis=1)
    order = np.random.default_rng(0).permutation(table.num_nodes)
    is_train = torch.zeros(table.num_nodes, dtype=torch.bool)
    is_train[order[: int(TRAIN_SHARE * len(order))]] = True
    data = Data(edge_index=torch.from_numpy(ends.astype(np.int64)), **columns)
    data.train_mask, data.test_mask = is_train, ~is_train
    points: dict[str, list[float]] = {"mix": [], "ranges": []}
    nodes: dict[str, list[float]] = {"mix": [], "ranges": []}
    with tempfile.TemporaryDirectory() as scratch:
        graph = partition(data, Path(scratch) / "parts", NUM_PARTS, clusters=NUM_CLUSTERS)
        for seed in range(num_seeds):
            for way in ("mix", "ranges"):
                shards = _shards(graph, way == "ranges", seed)
                found = _train(graph, data, shards, seed, epochs)
                points[way].append(found[0])
                nodes[way].append(found[1])
    apart = mean(points["ranges"]) - mean(points["mix"])
    error = 0.0
    if num_seeds > 1:
        error = float(np.hypot(stdev(points["ranges"]), stdev(points["mix"])) / num_seeds**0.5)
    return {
        "input_nodes": {way: round(mean(values), 1) for way, values in nodes.items()},
        "nodes_saved": 1 - mean(nodes["ranges"]) / mean(nodes["mix"]),
        "points": points,
        "points_apart": apart,
        "standard_error": error,
        "is_within_noise": abs(apart) <= max(0.5, 2 * error),
    }


def _shards(graph: Any, has_ranges: bool, seed: int) -> list[np.ndarray]:
    """Original ids of the seeds of each sampler: two samplers per partition, local seeds only."""
    from headrace.graph.sampler_worker.seed_assignment import assign_seeds
    from headrace.runtime.controller.task_configs import seeds_by_partition

    (name,) = graph.node_types
    parts, clusters = seeds_by_partition(graph, name, "train")
    mix = np.repeat(np.eye(NUM_PARTS), NUM_CLUSTERS, axis=0) * SUB_BATCH
    counts = [SUB_BATCH] * len(mix)
    return assign_seeds(parts, mix, counts, seed, clusters=clusters if has_ranges else None)


def _train(
    graph: Any, data: Any, shards: list[np.ndarray], seed: int, epochs: int
) -> tuple[float, float]:
    """Points on the test set, and mean input nodes per sub-batch.

    Every iteration has a sub-batch of each shard; their gradients are added, as trainers do.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from torch_geometric.nn import GraphSAGE

    from benchmarks.same_mathematics import by_destination
    from headrace import NeighborLoader

    torch.manual_seed(seed)
    model = GraphSAGE(data.x.shape[1], WIDTH, len(FAN_OUTS), int(data.y.max()) + 1, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    loaders = [
        NeighborLoader(
            graph,
            FAN_OUTS,
            input_nodes=torch.from_numpy(ids),
            batch_size=SUB_BATCH,
            shuffle=True,
            seed=seed,
        )
        for ids in shards
    ]
    num_nodes = num_batches = 0
    model.train()
    for _ in range(epochs):
        for batches in zip(*loaders, strict=False):
            optimizer.zero_grad()
            total = sum(batch.batch_size for batch in batches)
            for batch in batches:
                out = model(batch.x, by_destination(batch.edge_index, len(batch.x)))
                out = out[: batch.batch_size]
                loss = cross_entropy(out, batch.y[: batch.batch_size], reduction="sum") / total
                loss.backward()
                num_nodes += len(batch.x)
                num_batches += 1
            optimizer.step()
    model.eval()
    with torch.no_grad():
        whole = model(data.x, by_destination(data.edge_index, len(data.x)))
    is_right = whole.argmax(dim=1)[data.test_mask] == data.y[data.test_mask]
    return 100 * float(is_right.float().mean()), num_nodes / num_batches
