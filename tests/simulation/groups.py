"""The trainers' process group, and the collectives of torch in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.simulation.cluster import Cluster
from tests.simulation.processes import Task
from tests.simulation.world import Process, Ticket, World


class Group:
    """The process group of one start of all trainers: what they send each other arrives whole."""

    def __init__(self, cluster: Cluster, num: int) -> None:
        self._cluster, self._world, self._num = cluster, cluster.world, num
        self._members: dict[int, Task] = {}
        self._counts: dict[tuple[str, int], int] = {}
        self._given: dict[tuple[str, int], dict[int, Any]] = {}
        self._ready_s: dict[tuple[str, int], float] = {}
        self._waiting: list[Ticket] = []

    def join(self, rank: int, task: Task) -> None:
        """Add a trainer."""
        self._members[rank] = task

    def begin(self, kind: str, value: Any) -> Callable[[], dict[int, Any]]:
        """Give a value; the returned function waits for those of all."""
        fiber = self._world.current
        assert fiber is not None
        rank = fiber.process.details["rank"]
        number = self._counts.get((kind, rank), 0)
        self._counts[kind, rank] = number + 1
        key = (kind, number)
        given = self._given.setdefault(key, {})
        given[rank] = value
        if len(given) == self._num:
            self._ready_s[key] = self._arrival_s()
            for each in self._waiting:
                self._world.wake(each)
            self._waiting = []
        return lambda: self._wait(key)

    def _arrival_s(self) -> float:
        machines = [task.process.machine for task in self._members.values()]
        at_s = self._world.now_s
        for one in machines:
            for other in machines:
                cut_s = self._cluster.cut_until_s(one, other)
                begin_s = cut_s if cut_s > self._world.now_s else self._world.now_s
                at_s = max(at_s, begin_s + self._cluster.latency_s(one, other))
        return at_s

    def _wait(self, key: tuple[str, int]) -> dict[int, Any]:
        world = self._world
        while True:
            ready_s = self._ready_s.get(key)
            if ready_s is not None and world.now_s >= ready_s:
                return self._given[key]
            exited = [
                rank
                for rank, task in self._members.items()
                if task.exit_code is not None
                and task.process.machine.is_alive
                and rank not in self._given[key]
            ]
            if exited:
                raise RuntimeError("gloo/transport: Connection closed by peer")
            self._waiting.append(world.ticket())
            world.block(1.0 if ready_s is None else ready_s - world.now_s)


class Collectives:
    """Stand for the collectives of torch, in the group of the current process."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def _process(self) -> Process:
        assert self._world.current is not None
        return self._world.current.process

    def largest(self, values: Sequence[int], device: torch.device) -> Callable[[], list[int]]:
        """See `training.collectives`."""
        wait = self._process.details["group"].begin("largest", list(values))
        return lambda: [max(each) for each in zip(*wait().values(), strict=True)]

    def at_first_trainer(
        self, data: torch.Tensor, device: torch.device
    ) -> Callable[[], list[torch.Tensor] | None]:
        """See `training.collectives`."""
        process = self._process
        wait = process.details["group"].begin("gather", data)
        if process.details["rank"]:
            return lambda: self._world.sleep(0.005)
        return lambda: [each for _, each in sorted(wait().items())]

    def join_group(self, device: torch.device, world_size: int) -> None:
        """The group exists."""
