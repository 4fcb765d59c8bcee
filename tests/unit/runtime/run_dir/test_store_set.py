"""Folders of store sets, and what a run takes from them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import HeadraceError, RunError, SpecError
from headrace.policies.lifecycle.events import Event, Failed, Verified
from headrace.runtime.run_dir.attached_stores import AttachedStores, serving_state
from headrace.runtime.run_dir.status import Failure, TaskState
from headrace.runtime.run_dir.store_set import (
    ServedStore,
    StoreSet,
    StoreSetConfig,
    StoreSetPhase,
    StoreSetState,
)

CONFIG = StoreSetConfig(
    graph=Path("/parts"),
    cluster=Cluster(machines=tuple(Machine(name=f"m{m}", nic_in=1, nic_out=1) for m in range(2))),
    parts=(0, 1),
)
STORES = tuple(
    ServedStore(
        task=f"store{m}",
        machine=f"m{m}",
        host=f"10.0.0.{m}",
        graph="/parts",
        ports={m: 1000 + m},
        state=TaskState.RUNNING,
    )
    for m in range(2)
)
STATE = StoreSetState(
    name="parts",
    graph=Path("/parts"),
    graph_fingerprint="f",
    tls=False,
    is_local=False,
    since_s=0.0,
    phase=StoreSetPhase.SERVING,
    stores=STORES,
)


@pytest.fixture
def claimed(tmp_path: Path) -> StoreSet:
    store_set = StoreSet.named("parts", tmp_path)
    store_set.claim(CONFIG)  # the lock ends with this process
    store_set.write(STATE)
    for store in STORES:
        store_set.keys(store.task).write_text(store.task)
    return store_set


@pytest.mark.parametrize("name", ["", "2", "..", "a/b", ".hidden", "a" * 65])
def test_names_are_checked(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is not a name"):
        StoreSet.named(name, tmp_path)


def test_a_folder_has_one_supervisor(claimed: StoreSet, tmp_path: Path) -> None:
    assert claimed.is_up
    assert claimed.config == CONFIG
    assert claimed.read() == STATE
    assert [each.name for each in StoreSet.all(tmp_path)] == ["parts"]
    with pytest.raises(SpecError, match="up already"):
        claimed.claim(CONFIG)


def test_a_folder_of_a_dead_supervisor_is_cleared(tmp_path: Path) -> None:
    store_set = StoreSet.named("parts", tmp_path)
    os.close(store_set.claim(CONFIG))
    store_set.write(STATE)
    store_set.request_stop()
    assert not store_set.is_up
    with pytest.raises(RunError, match="ended unexpectedly"):
        serving_state(store_set)
    os.close(store_set.claim(CONFIG))
    assert not store_set.is_stop_requested
    with pytest.raises(SpecError, match="no stores named parts"):
        store_set.read()


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    store_set = StoreSet.named("parts", tmp_path)
    store_set.path.mkdir(parents=True)
    store_set.path.chmod(0o755)
    with pytest.raises(SpecError, match="not private"):
        store_set.claim(CONFIG)


def test_users_are_known_until_they_end(claimed: StoreSet) -> None:
    with claimed.used_by("run-1"):
        assert claimed.users == ["run-1"]
    assert claimed.users == []


def attached_to(
    store_set: StoreSet, machines: tuple[str, ...], parts: tuple[int, ...]
) -> AttachedStores:
    places = [(name, f"10.0.0.{name[1:]}") for name in machines]
    return AttachedStores(store_set, store_set.read(), places, parts)


def test_stores_are_found_by_machine(claimed: StoreSet) -> None:
    attached = attached_to(claimed, ("m1", "m0"), (1, 0))
    assert attached.keys == [b"store1", b"store0"]
    assert attached.ports == [{1: 1001}, {0: 1000}]
    with pytest.raises(SpecError, match="no store of partition 0 on m1"):
        attached_to(claimed, ("m1", "m0"), (0, 1))
    with pytest.raises(SpecError, match=r"no store on m2 at 10\.0\.0\.2"):
        attached_to(claimed, ("m0", "m2"), (0, 1))


def test_a_run_is_told_what_happens_to_its_stores(claimed: StoreSet) -> None:
    attached = attached_to(claimed, ("m1", "m0"), (1, 0))
    events: list[Event] = []
    lines: list[str] = []
    restarting = STORES[0].model_copy(update={"state": TaskState.STARTING})
    verified = STORES[1].model_copy(update={"is_verified": True})
    changed: list[StoreSetState | None] = [
        STATE,
        STATE.model_copy(update={"stores": (restarting, verified)}),
        STATE.model_copy(update={"stores": (STORES[0], verified)}),
    ]
    for now_s, state in enumerate(changed):
        assert state is not None
        claimed.write(state)
        attached.poll(float(now_s), events.append, lines.append)
        attached.poll(now_s + 0.1, events.append, lines.append)
    assert events == [Verified("store0")]  # the run's name of the store on m1
    assert lines == [
        "store1 on m0 is being restarted: requests wait",
        "store1 on m0 serves again",
    ]
    claimed.write(
        STATE.model_copy(
            update={
                "phase": StoreSetPhase.FAILED,
                "error": Failure(problem="a file is damaged", remedy="copy it"),
            }
        )
    )
    attached.poll(9.0, events.append, lines.append)
    assert events[1:] == [Failed("the stores parts ended: a file is damaged", "copy it")]


@pytest.mark.parametrize(
    ("phase", "words"),
    [(StoreSetPhase.STARTING, "are starting"), (StoreSetPhase.ENDED, "were taken down")],
)
def test_runs_use_only_stores_that_serve(
    claimed: StoreSet, phase: StoreSetPhase, words: str
) -> None:
    claimed.write(STATE.model_copy(update={"phase": phase}))
    with pytest.raises(HeadraceError, match=words):
        serving_state(claimed)
