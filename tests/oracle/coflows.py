"""Random graphs of coflows, and what no schedule of an all-to-all can beat."""

from __future__ import annotations

import numpy as np

from headrace.core.cluster import Machine
from headrace.core.coflows import Coflow, CoflowFlow, CoflowGraph, CoflowTask


def random_all_to_all(seed: int, *, equal_nics: bool = True) -> CoflowGraph:
    """One all-to-all of 2 to 16 machines; sizes differ by orders of magnitude, some are missing."""
    rng = np.random.default_rng([seed, 0xA11])
    num = int(rng.integers(2, 17))
    sizes = rng.lognormal(0, rng.uniform(0, 2), (num, num)) * 1e7
    sizes *= rng.random((num, num)) < rng.uniform(0.2, 1)
    sizes[0, 1] += 1e6
    np.fill_diagonal(sizes, 0)
    speeds = np.full((num, 2), 1.25e9) if equal_nics else rng.uniform(0.2e9, 2e9, (num, 2))
    names = [f"m{m}" for m in range(num)]
    return CoflowGraph(
        machines=tuple(
            Machine(name=name, nic_out=nic_out, nic_in=nic_in)
            for name, (nic_out, nic_in) in zip(names, speeds.tolist(), strict=True)
        ),
        types=("expert",),
        tasks=tuple(
            CoflowTask(name=f"{what} {name}", machine=name)
            for what in ("send", "receive")
            for name in names
        ),
        coflows=(
            Coflow(
                name="all-to-all",
                type="expert",
                flows=tuple(
                    CoflowFlow(src=f"send m{a}", dst=f"receive m{b}", bytes=float(sizes[a, b]))
                    for a, b in np.argwhere(sizes > 0)
                ),
            ),
        ),
    )


def lower_bound_s(graph: CoflowGraph) -> float:
    """Largest sum of bytes into or out of a machine, over its bandwidth."""
    machine_of = {task.name: task.machine for task in graph.tasks}
    seconds: dict[tuple[str, str], float] = {}
    hosts = {host.name: host for host in graph.cluster.hosts}
    for coflow in graph.coflows:
        for flow in coflow.flows:
            a, b = machine_of[flow.src], machine_of[flow.dst]
            if a != b:
                out = flow.bytes / hosts[a].nic_out
                seconds["out", a] = seconds.get(("out", a), 0.0) + out
                into = flow.bytes / hosts[b].nic_in
                seconds["in", b] = seconds.get(("in", b), 0.0) + into
    return max(seconds.values(), default=0.0)


def random_graph(seed: int) -> CoflowGraph:
    """A random DAG: layers of tasks, coflows from a layer to later ones, waits and an order."""
    rng = np.random.default_rng([seed, 0xDA6])
    num_machines, num_layers = int(rng.integers(2, 6)), int(rng.integers(2, 5))
    machines = [f"m{m}" for m in range(num_machines)]
    layers: list[list[CoflowTask]] = []
    for layer in range(num_layers):
        earlier = [task.name for tasks in layers for task in tasks]
        layers.append(
            [
                CoflowTask(
                    name=f"t{layer}.{i}",
                    machine=str(rng.choice(machines)),
                    time=float(rng.choice([0.0, rng.uniform(0.001, 0.1)])),
                    after=tuple(rng.choice(earlier, size=1)) if rng.random() < 0.3 * layer else (),
                )
                for i in range(int(rng.integers(1, 6)))
            ]
        )
    coflows = []
    for number in range(int(rng.integers(1, 7))):
        first = int(rng.integers(num_layers - 1))
        then = int(rng.integers(first + 1, num_layers))
        pairs = [(a.name, b.name) for a in layers[first] for b in layers[then]]
        chosen = rng.choice(len(pairs), size=int(rng.integers(1, len(pairs) + 1)), replace=False)
        coflows.append(
            Coflow(
                name=f"c{number}",
                type=str(rng.choice(["expert", "data"])),
                bin=int(rng.integers(3)),
                layer=int(rng.integers(3)),
                flows=tuple(
                    CoflowFlow(
                        src=pairs[i][0],
                        dst=pairs[i][1],
                        bytes=float(rng.choice([0.0, *rng.lognormal(15, 1, 5)])),
                    )
                    for i in chosen
                ),
            )
        )
    tasks = [task for layer in layers for task in layer]
    order = [tuple(t.name for t in tasks if t.machine == machine) for machine in machines]
    return CoflowGraph(
        machines=tuple(
            Machine(name=name, nic_out=nic_out, nic_in=nic_in)
            for name, (nic_out, nic_in) in zip(
                machines, rng.uniform(1e7, 1e9, (num_machines, 2)).tolist(), strict=True
            )
        ),
        types=("expert", "data"),
        tasks=tuple(tasks),
        coflows=tuple(coflows),
        order=tuple(line for line in order if rng.random() < 0.5),
    )
