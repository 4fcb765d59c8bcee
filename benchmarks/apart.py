"""Measurements in processes of their own: seconds by stage, and memory that no file backs."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GIB = 2.0**30


def own_bytes() -> int:
    """Memory of this process that no file backs."""
    wanted = ("RssAnon:", "RssShmem:")
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(wanted))


class Stages:
    """Seconds by stage, and the most memory at any time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}
        self.peak_bytes = 0
        self._name = ""
        self._began = (0.0, 0.0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.peak_bytes = max(self.peak_bytes, own_bytes())

    def begin(self, stage: str, total: int | None = None) -> None:
        self.end()
        self._name, self._began = stage, (time.perf_counter(), time.process_time())

    def advance(self, amount: int) -> None:
        pass

    def end(self) -> None:
        if self._name:
            seconds = time.perf_counter() - self._began[0]
            cpu = time.process_time() - self._began[1]
            self.seconds[self._name] = round(self.seconds.get(self._name, 0.0) + seconds, 2)
            self.cpu_seconds[self._name] = round(self.cpu_seconds.get(self._name, 0.0) + cpu, 2)
            self._name = ""

    def close(self) -> None:
        self.end()
        self._stop.set()
        self._thread.join()


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    finally:
        process.join()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _answer(sender: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        sender.send(function(*arguments))
    except Exception as error:
        sender.send(RuntimeError(f"{type(error).__name__}: {error}"))


@contextmanager
def staying(make: Callable[..., Callable[..., Any]], *arguments: Any) -> Iterator[Any]:
    """A fresh process that makes something to call, until the end of the block; how to call it.

    The first call waits until the process is ready.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer_often, args=(theirs, make, arguments))
    process.start()
    theirs.close()

    def call(*arguments: Any) -> Any:
        ours.send(arguments)
        answer = ours.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    try:
        yield call
    finally:
        ours.close()
        process.join()


def _answer_often(end: Any, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        made = make(*arguments)
        while True:
            try:
                asked = end.recv()
            except EOFError:
                return
            end.send(made(*asked))
    except Exception as error:
        end.send(RuntimeError(f"{type(error).__name__}: {error}"))


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
