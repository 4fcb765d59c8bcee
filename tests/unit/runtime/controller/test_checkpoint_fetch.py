"""Checkpoints get from a trainer's machine to the run's folder, whole or not at all."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from headrace.runtime.callbacks.base import RunCallback
from headrace.runtime.cluster.local_actors import LocalActors
from headrace.runtime.controller import checkpoint_fetch
from headrace.runtime.controller.checkpoint_fetch import (
    MAX_ATTEMPTS,
    CheckpointFetcher,
    fetch_last,
)
from headrace.runtime.controller.worker_group import PendingActorCalls
from headrace.training.checkpoint_files import (
    Checkpoint,
    Position,
    load,
    newest_whole,
    save,
)
from tests.support.disks import fill, small_disk

PIECE_BYTES = 500


class Asked(PendingActorCalls):
    """Calls that are answered when a test wants it."""

    def __init__(self) -> None:
        super().__init__(LocalActors("m0"))
        self.waiting: list[tuple[Any, Callable[[Any], None], Callable[[Exception], None]]] = []

    def add(
        self, ref: Any, then: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> None:
        self.waiting.append((ref, then, failed))

    def answer(self, num: int = 1000) -> None:
        while self.waiting and num:
            read, then, _ = self.waiting.pop(0)
            then(read())
            num -= 1

    def fail(self) -> None:
        _, _, failed = self.waiting.pop(0)
        failed(OSError("gone"))


class Trainer:
    """A trainer's folder, and who brings its checkpoints home."""

    def __init__(self, tmp_path: Path) -> None:
        self.output, self.home = tmp_path / "output", tmp_path / "home"
        self.calls = Asked()
        self.told: list[Checkpoint] = []
        self.said: list[str] = []
        self.collector = CheckpointFetcher(
            self.home, self.calls, self._piece, self.told.append, self.said.append
        )

    def save(self, iteration: int) -> Checkpoint:
        state = {"iteration": iteration, "padding": bytes(3000)}
        position = Position(iteration=iteration, epoch=1, batch=2)
        return save(self.output / "checkpoints", position, state, keep=1)

    def look(self) -> None:
        paths = (self.output / "checkpoints").glob("*.json")
        self.collector.update({path.name: path.read_text() for path in paths})

    def _piece(self, name: str, offset: int) -> Callable[[], bytes]:
        def read() -> bytes:
            path = self.output / name
            return path.read_bytes()[offset : offset + PIECE_BYTES] if path.exists() else b""

        return read


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path)


def test_a_checkpoint_comes_home_once(trainer: Trainer) -> None:
    trainer.look()
    assert not trainer.collector.is_busy
    trainer.save(100)
    for _ in range(2):
        trainer.look()
        assert trainer.collector.is_busy
    trainer.calls.answer()
    trainer.look()
    assert not trainer.collector.is_busy
    (found,) = trainer.told
    assert found == newest_whole(trainer.home)
    assert load(found.path)[1]["iteration"] == 100
    assert not list(trainer.home.glob(".*"))


def test_the_newest_comes_after_the_one_under_way(trainer: Trainer) -> None:
    trainer.save(100)
    trainer.look()
    trainer.calls.answer(1)
    # What is under way is removed as there are newer ones: only the newest arrives.
    for iteration in (200, 300):
        trainer.save(iteration)
        trainer.look()
    trainer.calls.answer()
    assert [found.sidecar.iteration for found in trainer.told] == [300]
    assert newest_whole(trainer.home) == trainer.told[0]


def test_a_machine_that_is_lost_leaves_what_had_arrived(trainer: Trainer) -> None:
    trainer.save(100)
    trainer.look()
    trainer.calls.answer()
    trainer.save(200)
    trainer.look()
    for _ in range(MAX_ATTEMPTS):
        assert trainer.collector.is_busy
        trainer.calls.fail()
    assert not trainer.collector.is_busy
    found = newest_whole(trainer.home)
    assert found is not None
    assert found.sidecar.iteration == 100
    assert not list(trainer.home.glob(".*"))


def test_what_is_not_whole_is_not_taken(trainer: Trainer) -> None:
    made = trainer.save(100)
    made.path.write_bytes(made.path.read_bytes()[:-1] + b"?")
    trainer.look()
    trainer.calls.answer()
    assert trainer.told == []
    assert newest_whole(trainer.home) is None
    trainer.collector.update({"checkpoint-00000300.json": '{"iteration'})
    assert not trainer.collector.is_busy


def test_a_full_disk_costs_a_checkpoint_until_there_is_space(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_fetch, "_RETRY_S", 0.0)
    with small_disk(trainer.home, 1 << 16) as home:
        trainer.save(100)
        trainer.look()
        trainer.calls.answer()
        filler = fill(home)
        trainer.save(200)
        for _ in range(3):
            trainer.look()
            # It is not even asked for.
            assert not trainer.calls.waiting
        why = "the checkpoint of iteration 200 cannot be stored: No space left on device"
        assert trainer.said == [f"{why} ({home})"]
        assert trainer.collector.problem == why
        found = newest_whole(home)
        assert found is not None
        assert found.sidecar.iteration == 100
        filler.unlink()
        trainer.look()
        trainer.calls.answer()
        assert [each.sidecar.iteration for each in trainer.told] == [100, 200]
        assert not trainer.collector.problem


@pytest.mark.parametrize("is_full", [True, False])
def test_the_last_files_are_stored_or_missed(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    monkeypatch.setattr(checkpoint_fetch, "SPACE_S", 0.0)
    said: list[str] = []
    kept: list[str] = []

    class Folder(RunCallback):
        def log(self, line: str) -> None:
            said.append(line)

        def kept(self, name: str, pieces: Iterator[bytes]) -> None:
            if is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            kept.append(name)

    names = ("best.pt", "other")
    problem, remedy = fetch_last(
        "trainer0",
        trainer.collector,
        names=names,
        pieces=lambda _: iter(()),
        callback=Folder(),
        waits=True,
    )
    assert problem == ("best.pt cannot be stored: No space left on device" if is_full else "")
    assert remedy.startswith("free some space" if is_full else "")
    assert kept == ([] if is_full else list(names))
    assert said == []


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_last_checkpoint_that_is_not_sent_is_missed(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    monkeypatch.setattr(checkpoint_fetch, "_CHUNK_TIMEOUT_S", 0.0)

    def fetch() -> tuple[str, str]:
        return fetch_last(
            "trainer0",
            trainer.collector,
            names=(),
            pieces=lambda _: iter(()),
            callback=RunCallback(),
            waits=True,
            is_lost=is_lost,
        )

    # A run without checkpoints misses none.
    assert fetch() == ("", "")
    trainer.save(100)
    trainer.look()
    why = "is lost" if is_lost else "does not respond"
    problem, remedy = fetch()
    assert problem == f"the checkpoint of iteration 100 was not fetched: trainer0 {why}"
    assert remedy == "resume it: headrace run --resume RUN"
    trainer.calls.answer()
    assert fetch() == ("", "")


@pytest.mark.parametrize("is_mended", [False, True])
def test_a_last_checkpoint_that_is_damaged_on_its_way_is_fetched_again(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, is_mended: bool
) -> None:
    made = trainer.save(100)
    whole = made.path.read_bytes()
    made.path.write_bytes(whole[:-1] + b"?")
    trainer.look()

    def collect(timeout_s: float) -> None:
        trainer.calls.answer()
        if is_mended:
            made.path.write_bytes(whole)

    monkeypatch.setattr(trainer.calls, "collect", collect)
    problem, _ = fetch_last(
        "trainer0",
        trainer.collector,
        names=(),
        pieces=lambda _: iter(()),
        callback=RunCallback(),
        waits=True,
    )
    why = "the checkpoint of iteration 100 was not fetched: it did not arrive whole"
    assert problem == ("" if is_mended else why)
    assert len(trainer.told) == is_mended
    assert trainer.said == ["fetching the checkpoint of iteration 100 again"]


def test_a_slow_fetch_is_told(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now_s = 0.0

        def monotonic(self) -> float:
            return self.now_s

    clock = Clock()

    def collect(timeout_s: float) -> None:
        clock.now_s += 9.0
        trainer.calls.answer(1)

    trainer.save(100)
    trainer.look()
    monkeypatch.setattr(checkpoint_fetch, "time", clock)
    monkeypatch.setattr(trainer.calls, "collect", collect)
    assert trainer.collector.wait()
    assert len(trainer.said) >= 6
    assert "bytes of it were fetched" in trainer.said[0]
