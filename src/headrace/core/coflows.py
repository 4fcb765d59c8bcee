"""A graph of tasks and coflows: any DAG, such as an iteration of pipeline and expert parallelism.

A coflow is a set of flows that belong together, e.g. the flows of an all-to-all. Three factors give
its priority: its bin, its type and its layer (Hermod, section 5.3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Literal, Self

from pydantic import Field, model_validator

from headrace.core.cluster import Cluster, Machine, check_host_names
from headrace.core.errors import SpecError
from headrace.core.units import Bytes, Count, Seconds
from headrace.core.values import Spec


class CoflowTask(Spec):
    """One task on a machine.

    A task starts when the tasks in `after` have ended and all flows to it have arrived.

    Attributes:
        name: Unique in the graph.
        machine: Machine of the task.
        time: Seconds that the task takes; 0 for a task that only waits.
        after: Tasks that end before this one starts.
    """

    name: str = Field(min_length=1)
    machine: str
    time: Seconds = 0.0
    after: tuple[str, ...] = ()


class CoflowFlow(Spec):
    """One flow; between tasks of one machine it takes no time.

    Attributes:
        src: Sending task; the flow starts when it ends.
        dst: Receiving task; it waits for the flow.
        bytes: Bytes of the flow.
    """

    src: str
    dst: str
    bytes: Bytes


class Coflow(Spec):
    """Flows of one collective operation.

    Attributes:
        name: Unique in the graph.
        type: One of the graph's types.
        bin: Bin, iteration or micro-batch; smaller is more urgent.
        layer: Layer of the model; smaller is more urgent.
        flows: Flows of the coflow.
    """

    name: str = Field(min_length=1)
    type: str
    bin: Count = Field(default=0, ge=0)
    layer: Count = Field(default=0, ge=0)
    flows: tuple[CoflowFlow, ...] = Field(min_length=1)


class CoflowGraph(Spec):
    """Tasks on machines, coflows between them, and their order.

    Attributes:
        version: Version of the file format.
        name: Name of the graph.
        machines: Machines and groups of identical machines; only names and NICs are used.
        types: Types of coflows, the most urgent first.
        tasks: All tasks.
        coflows: All coflows.
        order: Lists of tasks of one machine that run one at a time, in this order. All other tasks
            start as soon as they can.

    Example:
        >>> from headrace import CoflowGraph, Machine
        >>> graph = CoflowGraph(
        ...     machines=[Machine(name="m", count=2, nic="1Gbps")],
        ...     types=["pipeline"],
        ...     tasks=[
        ...         {"name": "first", "machine": "m-0", "time": "10ms"},
        ...         {"name": "second", "machine": "m-1", "time": "10ms"},
        ...     ],
        ...     coflows=[
        ...         {
        ...             "name": "activations",
        ...             "type": "pipeline",
        ...             "flows": [{"src": "first", "dst": "second", "bytes": "1MB"}],
        ...         }
        ...     ],
        ... )
        >>> graph.num_flows
        1
    """

    version: Literal[1] = 1
    name: str = "coflows"
    machines: tuple[Machine, ...] = Field(min_length=1)
    types: tuple[str, ...] = ()
    tasks: tuple[CoflowTask, ...] = Field(min_length=1)
    coflows: tuple[Coflow, ...] = ()
    order: tuple[tuple[str, ...], ...] = ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        check_host_names(self.machines)
        _check_unique("type", self.types, ("types",), "")
        _check_unique("task", [task.name for task in self.tasks], ("tasks",), "name")
        _check_unique("coflow", [each.name for each in self.coflows], ("coflows",), "name")
        hosts = {name for machine in self.machines for name in machine.host_names}
        for i, task in enumerate(self.tasks):
            _check_known("machine", task.machine, hosts, ("tasks", i, "machine"))
            for k, name in enumerate(task.after):
                _check_known("task", name, self.task_index, ("tasks", i, "after", k))
        for i, coflow in enumerate(self.coflows):
            _check_known("type", coflow.type, set(self.types), ("coflows", i, "type"))
            for k, flow in enumerate(coflow.flows):
                for end in ("src", "dst"):
                    at = ("coflows", i, "flows", k, end)
                    _check_known("task", getattr(flow, end), self.task_index, at)
        self._check_order()
        self._check_cycles()
        return self

    @cached_property
    def task_index(self) -> dict[str, int]:
        """Index of every task by name."""
        return {task.name: i for i, task in enumerate(self.tasks)}

    @cached_property
    def cluster(self) -> Cluster:
        """The machines as a cluster."""
        return Cluster(machines=self.machines)

    @property
    def num_flows(self) -> int:
        """Number of flows of all coflows."""
        return sum(len(coflow.flows) for coflow in self.coflows)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Rank of every coflow by bin, then type, then layer; 0 is the most urgent."""
        factors = [
            (coflow.bin, self.types.index(coflow.type), coflow.layer) for coflow in self.coflows
        ]
        rank = {each: i for i, each in enumerate(sorted(set(factors)))}
        return tuple(rank[each] for each in factors)

    @cached_property
    def waits(self) -> tuple[tuple[int, int], ...]:
        """Pairs of tasks that end and start one after the other without a flow."""
        index = self.task_index
        after = [(index[name], index[task.name]) for task in self.tasks for name in task.after]
        order = [
            (index[before], index[then]) for line in self.order for before, then in pairwise(line)
        ]
        return tuple(dict.fromkeys(after + order))

    def _check_order(self) -> None:
        seen: set[str] = set()
        for i, line in enumerate(self.order):
            for k, name in enumerate(line):
                at = ("order", i, k)
                _check_known("task", name, self.task_index, at)
                if name in seen:
                    raise SpecError(
                        f"task {name!r} is in the order twice", "remove one of them", at=at
                    )
                seen.add(name)
                machine, first = (self.tasks[self.task_index[n]].machine for n in (name, line[0]))
                if machine != first:
                    raise SpecError(
                        f"task {name!r} is on {machine}, the first of its list on {first}",
                        "list tasks of one machine, and use `after` between machines",
                        at=at,
                    )

    def _check_cycles(self) -> None:
        num = len(self.tasks)
        followers: list[list[int]] = [[] for _ in range(num)]
        flows = [flow for coflow in self.coflows for flow in coflow.flows]
        pairs = [(self.task_index[flow.src], self.task_index[flow.dst]) for flow in flows]
        num_before = [0] * num
        for before, then in (*self.waits, *pairs):
            followers[before].append(then)
            num_before[then] += 1
        ready = [task for task in range(num) if not num_before[task]]
        for task in ready:
            for then in followers[task]:
                num_before[then] -= 1
                if not num_before[then]:
                    ready.append(then)
        if len(ready) < num:
            left = set(range(num)).difference(ready)
            # Every remaining task has a remaining predecessor: going back ends in a cycle.
            before_of = {then: task for task in sorted(left) for then in followers[task]}
            path = [min(left)]
            while path[-1] not in path[:-1]:
                path.append(before_of[path[-1]])
            cycle = path[path.index(path[-1]) :][::-1]
            names = " -> ".join(self.tasks[task].name for task in cycle)
            raise SpecError(
                f"the tasks wait for each other: {names}",
                "remove a flow, an `after` or an entry of `order` between them",
                at=("tasks", cycle[0]),
            )


def _check_unique(what: str, names: Sequence[str], at: tuple[str | int, ...], key: str) -> None:
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            raise SpecError(
                f"two {what}s have the name {name!r}",
                f"give every {what} a unique name",
                at=(*at, i, key) if key else (*at, i),
            )
        seen.add(name)


def _check_known(
    what: str, name: str, known: set[str] | dict[str, int], at: tuple[str | int, ...]
) -> None:
    if name not in known:
        some = ", ".join(sorted(known)[:8]) + (", ..." if len(known) > 8 else "")
        raise SpecError(
            f"there is no {what} {name!r}",
            f"use one of {some}" if known else f"add it to the {what}s",
            at=at,
        )
