"""Where task actors live: on a Ray cluster, or in this process (see `local_actors`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from headrace.runtime.cluster.head import CALL_S, Head
from headrace.runtime.cluster.prometheus import endpoint_here

if TYPE_CHECKING:
    from headrace.runtime.cluster.placement_group import TaskPlacement


class CallFailure(StrEnum):
    """Why an actor call failed."""

    RAISED = "raised"
    TRANSIENT = "transient"
    DIED = "died"
    NO_ENVIRONMENT = "no environment"


@dataclass(frozen=True)
class Location:
    """Node id and address of a process."""

    node_id: str
    address: str


class Reservation(Protocol):
    """Reserved resources of all task actors of a run."""

    @property
    def is_ready(self) -> bool:
        """Whether all resources are reserved."""

    def lacks(self) -> dict[str, str]:
        """Missing resources of pending tasks, by task name."""

    def start(self, number: int, actor: type, *arguments: Any) -> Any:
        """Start a task actor in its bundle; return its handle without waiting."""

    def remove(self) -> None:
        """Release all resources."""


class ActorSystem(Protocol):
    """Starts task actors and calls their methods.

    `handle.method.remote(...)` returns a reference to the result, as in Ray.

    Attributes:
        poll_interval_s: Interval of state polls while nothing happens.
        has_fork_server: Whether a fork server starts the tasks' processes.
    """

    poll_interval_s: float
    has_fork_server: bool

    @property
    def metrics_endpoint(self) -> str | None:
        """Address of this machine's metrics for Prometheus, if any."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Errors of calls; with Ray also those that a called method raised."""

    @property
    def head_silent_s(self) -> float:
        """Time since the cluster's head has answered; 0 without a head."""

    def nodes(self, timeout_s: float = CALL_S) -> Sequence[Mapping[str, Any]]:
        """All nodes, in the format of `ray.nodes()`; raises `HeadLostError`."""

    def location(self) -> Location:
        """Location of the calling process."""

    def gpu_ids(self) -> list[str]:
        """GPU ids assigned to the calling actor."""

    def reserve(self, slots: Sequence[TaskPlacement], name: str) -> Reservation:
        """Reserve the resources of all tasks."""

    def wait(self, refs: Sequence[Any], timeout_s: float, num: int = 1) -> list[Any]:
        """Wait until `num` results are available; return all available references."""

    def get(self, ref: Any, timeout_s: float) -> Any:
        """Result of a call; raises its error."""

    def kill(self, actor: Any) -> None:
        """Kill an actor and the processes that it started."""

    def why(self, error: Exception) -> CallFailure:
        """Why a call failed."""


class RayActors:
    """Task actors of the Ray cluster to which this process is connected.

    Args:
        head: Head of the cluster; None in processes that do not need it.
    """

    # A call costs 2 ms of CPU time in two processes (measured).
    poll_interval_s = 1.0
    has_fork_server = True

    def __init__(self, head: Head | None = None) -> None:
        self._head = head

    def __reduce__(self) -> tuple[type[RayActors], tuple[()]]:
        # Task actors get this object.
        return RayActors, ()

    @property
    def head_silent_s(self) -> float:
        """Time since the cluster's head has answered."""
        return 0.0 if self._head is None else self._head.silent_s

    @property
    def metrics_endpoint(self) -> str | None:
        """Metrics endpoint of this machine's Ray node."""
        return endpoint_here()

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Errors that Ray raises."""
        from ray.exceptions import RayError

        return (RayError,)

    def nodes(self, timeout_s: float = CALL_S) -> Sequence[Mapping[str, Any]]:
        """All nodes of the cluster."""
        import ray

        known: list[Mapping[str, Any]] = self._ask(ray.nodes, timeout_s)
        return known

    def location(self) -> Location:
        """Location of the calling process."""
        import ray

        node_id = ray.get_runtime_context().get_node_id()
        return Location(node_id, ray.util.get_node_ip_address())

    def gpu_ids(self) -> list[str]:
        """GPU ids assigned to the calling actor."""
        import ray

        return [str(number) for number in ray.get_gpu_ids()]

    def reserve(self, slots: Sequence[TaskPlacement], name: str) -> Reservation:
        """Create a placement group."""
        from headrace.runtime.cluster.placement_group import TaskPlacementGroup

        group: Reservation = self._ask(partial(TaskPlacementGroup, slots, name, self._ask))
        return group

    def wait(self, refs: Sequence[Any], timeout_s: float, num: int = 1) -> list[Any]:
        """Wait until `num` results are available; return all available references."""
        import ray

        if not refs:
            time.sleep(timeout_s)
            return []
        first, _ = ray.wait(list(refs), num_returns=num, timeout=timeout_s)
        if not first:
            return []
        done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=0)
        return list(done)

    def get(self, ref: Any, timeout_s: float) -> Any:
        """Result of a call; raises its error."""
        import ray

        return ray.get(ref, timeout=timeout_s)

    def kill(self, actor: Any) -> None:
        """Kill an actor; its processes end with it."""
        import ray

        with suppress(Exception):
            self._ask(partial(ray.kill, actor))

    def _ask(self, call: Callable[[], Any], timeout_s: float = CALL_S) -> Any:
        return call() if self._head is None else self._head.ask(call, timeout_s)

    def why(self, error: Exception) -> CallFailure:
        """Why a call failed."""
        from ray import exceptions

        if isinstance(error, exceptions.ActorUnavailableError | exceptions.GetTimeoutError):
            return CallFailure.TRANSIENT
        if isinstance(error, exceptions.RuntimeEnvSetupError):
            return CallFailure.NO_ENVIRONMENT
        is_raised = isinstance(error, exceptions.RayTaskError)
        if isinstance(error, exceptions.RayActorError) and not is_raised:
            return CallFailure.DIED
        return CallFailure.RAISED
