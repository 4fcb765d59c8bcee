"""The stores of a store set, as a run uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.core.errors import HeadraceError, RunError, SpecError
from headrace.policies.lifecycle.events import Event, Failed, Verified
from headrace.runtime.run_dir.status import TaskState
from headrace.runtime.run_dir.store_set import (
    ServedStore,
    StoreSet,
    StoreSetPhase,
    StoreSetState,
)

_POLL_INTERVAL_S = 0.5


class AttachedStores:
    """Stores of a store set on the machines of a plan.

    Args:
        store_set: The folder of the store set.
        state: Its state.
        machines: Name and address of every machine, in the order of the plan.
        part_machines: Machine index of every graph partition.

    Attributes:
        keys: Credentials of the tasks of each machine.
        folders: Folder of the graph on each machine.
        ports: Store ports of each machine, by graph partition.

    Raises:
        SpecError: The stores are not those of the plan.
    """

    def __init__(
        self,
        store_set: StoreSet,
        state: StoreSetState,
        machines: Sequence[tuple[str, str]],
        part_machines: Sequence[int],
    ) -> None:
        self._store_set, self._tls = store_set, state.tls
        by_machine = {store.machine: store for store in state.stores}
        for name, address in machines:
            if name not in by_machine or by_machine[name].host != address:
                raise self._mismatch(f"no store on {name} at {address}")
        self._stores = [by_machine[name] for name, _ in machines]
        for part, home in enumerate(part_machines):
            if part not in self._stores[home].ports:
                raise self._mismatch(f"no store of partition {part} on {machines[home][0]}")
        self.keys = [store_set.keys(store.task).read_bytes() for store in self._stores]
        self.folders = [store.graph for store in self._stores]
        self.ports: list[Mapping[int, int]] = [store.ports for store in self._stores]
        # The plan may list machines in another order.
        self._tasks = {store.task: f"store{m}" for m, store in enumerate(self._stores)}
        self._verified: set[str] = set()
        self._waiting: set[str] = set()
        self._next_s = 0.0

    def poll(self, now_s: float, emit: Callable[[Event], None], log: Callable[[str], None]) -> None:
        """Emit what the supervisor of the stores has recorded, at most twice per second."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + _POLL_INTERVAL_S
        try:
            state = serving_state(self._store_set)
        except HeadraceError as error:
            emit(Failed(error.problem, error.remedy))
            return
        for store in state.stores:
            self._update(store, emit, log)

    def _update(
        self, store: ServedStore, emit: Callable[[Event], None], log: Callable[[str], None]
    ) -> None:
        name = self._tasks.get(store.task)
        if name is None:
            return
        if store.is_verified and name not in self._verified:
            self._verified.add(name)
            emit(Verified(name))
        waits = store.state is not TaskState.RUNNING
        if waits != (name in self._waiting):
            self._waiting ^= {name}
            is_back = "is being restarted: requests wait" if waits else "serves again"
            log(f"{name} on {store.machine} {is_back}")

    def _mismatch(self, what: str) -> SpecError:
        return SpecError(
            f"the stores {self._store_set.name} are not those of the plan: there is {what}",
            "start stores for this plan with `headrace stores up --plan`",
        )


def serving_state(store_set: StoreSet) -> StoreSetState:
    """The state of stores that serve.

    Raises:
        SpecError: There are no such stores, or they have not served yet.
        RunError: They have ended.
    """
    state, name = store_set.read(), store_set.name
    if state.error is not None:
        raise RunError(f"the stores {name} ended: {state.error.problem}", state.error.remedy)
    restart = f"`headrace stores up --graph {state.graph} --name {name}`"
    if state.phase is StoreSetPhase.ENDED or not store_set.is_up:
        how = "were taken down" if state.phase is StoreSetPhase.ENDED else "ended unexpectedly"
        raise RunError(f"the stores {name} {how}", f"start them again with {restart}")
    if state.phase is StoreSetPhase.STARTING:
        raise SpecError(
            f"the stores {name} are starting", f"wait until `headrace stores status {name}` is ok"
        )
    return state
