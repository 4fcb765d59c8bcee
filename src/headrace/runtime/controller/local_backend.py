"""Runs a script on one machine, without cluster and plan: stores, samplers and one trainer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import IO, Any

from headrace.core.errors import DamagedGraphError, RunError, SpecError
from headrace.graph.format.checksums import Verification
from headrace.graph.format.manifest import load_manifest
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.store.config import StoreConfig
from headrace.rpc.credentials import Authority, Credentials, Secret
from headrace.runtime.callbacks.base import RunWatcher
from headrace.runtime.callbacks.progress import StartupWatch
from headrace.runtime.callbacks.trackers import Trackers, check_trackers, make_tracking, settings_of
from headrace.runtime.controller.signals import ENDING, signals_handled
from headrace.runtime.protocol.run_context import CONTEXT_VARIABLE, RunContext
from headrace.runtime.protocol.trainer_messages import Inbox, Message, Report
from headrace.runtime.run_dir.run_dir import runs_folder
from headrace.runtime.run_dir.temp_dirs import keep_logs, run_folder
from headrace.runtime.workers.store_process import StoreProcess
from headrace.runtime.workers.task_process import how_ended

_HOST = "127.0.0.1"
_POLL_INTERVAL_S = 0.1
_SHUTDOWN_TIMEOUT_S, _VERIFY_TIMEOUT_S = 5.0, 3.0
_CERTIFICATE_LIFETIME = timedelta(days=30)


@dataclass(frozen=True)
class LocalRun:
    """Settings of a local run.

    Attributes:
        script: Python training script.
        arguments: Arguments of the script.
        parts: Directory of a partitioned graph.
        num_stores: Graph partitions served by a store, as if remote; the others are memory-mapped.
            None for all.
        num_samplers: Sampler processes per training loader; 0 for none.
        tls: Whether connections to stores are encrypted; not needed on one machine.
        config: The user's config of the script.
        allow_nan: Whether losses and gradients may be infinite or NaN.
    """

    script: Path
    arguments: tuple[str, ...] = ()
    parts: Path | None = None
    num_stores: int | None = None
    num_samplers: int = 1
    tls: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    allow_nan: bool = False


def run_local(wanted: LocalRun, watcher: RunWatcher) -> int:
    """Run a script with its stores and samplers; all processes end with this call.

    Must be called from the main thread, which handles signals.

    Returns:
        The exit code of the script; 128 plus the signal number if a signal ended it.

    Raises:
        SpecError: The script or the graph is invalid.
        RunError: A store did not start or was lost.
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP, after all processes have ended.
    """
    num_stores = _check(wanted)
    machine = socket.gethostname()
    with signals_handled(_interrupt), run_folder() as folder:
        try:
            code = _run_verified(wanted, num_stores, machine, folder, watcher)
        except (RunError, DamagedGraphError):
            _keep_logs(folder, watcher)
            raise
        if code != 0:
            watcher.log(f"trainer on {machine} {how_ended(code)}")
            _keep_logs(folder, watcher)
    return code if code >= 0 else 128 - code


def _run_verified(
    wanted: LocalRun, num_stores: int, machine: str, folder: Path, watcher: RunWatcher
) -> int:
    """Run while the graph is verified in the background; a damaged graph fails the run."""
    if wanted.parts is None:
        return _run(wanted, num_stores, machine, folder, watcher, lambda: None)
    parts = wanted.parts.resolve()
    verification = Verification(parts, load_manifest(parts).files)
    verification.start()
    try:
        code = _run(wanted, num_stores, machine, folder, watcher, verification.check)
    except RunError:
        # A damaged graph may be the cause; wait briefly for the verification.
        verification.wait(_VERIFY_TIMEOUT_S)
        verification.check()
        raise
    if not verification.wait(_VERIFY_TIMEOUT_S) and code == 0:
        watcher.log("waiting for the verification of the graph files")
        verification.wait(None)
    verification.check()
    return code


def _run(
    wanted: LocalRun,
    num_stores: int,
    machine: str,
    folder: Path,
    watcher: RunWatcher,
    check: Callable[[], None],
) -> int:
    """Start all processes, wait for the trainer, end all; return the trainer's exit code."""
    with ExitStack() as stack:
        inbox = Inbox(folder / "messages")
        stack.callback(inbox.close)
        credentials = _write_credentials(folder, wanted.tls)
        stores: list[StoreProcess] = []
        for part in range(num_stores):
            assert wanted.parts is not None
            config = StoreConfig(
                graph=wanted.parts.resolve(),
                part=part,
                credentials=credentials / "stores",
                ready=folder / f"store-{part}.ready",
                host=_HOST,
                tls=wanted.tls,
                embedding_folder=folder / "embeddings",
            )
            stores.append(StoreProcess(config, machine, folder))
            stack.callback(stores[-1].close)
        places = tuple(store.wait_until_ready() for store in stores)
        for store, place in zip(stores, places, strict=True):
            watcher.log(f"{store.name} serves partition {place.part} (process {store.pid})")
        context = RunContext(
            machine=machine,
            messages=folder / "messages",
            parts=None if wanted.parts is None else wanted.parts.resolve(),
            stores=places,
            credentials=credentials / "trainer",
            tls=wanted.tls,
            num_samplers=wanted.num_samplers,
            log=folder / "samplers.log",
            config=dict(wanted.config),
            allow_nan=wanted.allow_nan,
        )
        path = folder / "context.json"
        path.write_text(context.model_dump_json(), encoding="utf-8")
        trainer = _start_trainer(wanted, path, machine, watcher.output)
        stack.callback(_end, trainer)
        watcher.log(f"trainer on {machine} runs {wanted.script} (process {trainer.pid})")
        reader = _read_lines(trainer.stdout, watcher)
        first_batch = StartupWatch(time.monotonic())
        while not _has_ended(trainer):
            for message in inbox.receive(_POLL_INTERVAL_S):
                first_batch.update(message)
                watcher.notify(message)
            if line := first_batch.poll(time.monotonic()):
                watcher.log(line)
            check()
            for store in stores:
                store.check()
        code = _end(trainer)
        if reader is not None:
            reader.join(_SHUTDOWN_TIMEOUT_S)
        for message in inbox.receive(0):
            watcher.notify(message)
    return code


def _keep_logs(folder: Path, watcher: RunWatcher) -> None:
    kept = keep_logs(folder)
    if kept is not None:
        watcher.log(f"logs of stores and samplers are in {kept}")


def _check(wanted: LocalRun) -> int:
    """Check the settings; return the number of stores to start."""
    if not wanted.script.is_file():
        raise SpecError(f"there is no script {wanted.script}", "give a Python file")
    if wanted.num_samplers < 0:
        raise SpecError(f"the number of samplers is {wanted.num_samplers}", "give 0 or more")
    if wanted.parts is None:
        if wanted.num_stores:
            raise SpecError(
                f"{wanted.num_stores} stores need a partitioned graph, and none is given",
                "give --graph with a directory written by `headrace partition`",
            )
        return 0
    num_parts = open_graph(wanted.parts).num_parts
    num_stores = num_parts if wanted.num_stores is None else wanted.num_stores
    if not 0 <= num_stores <= num_parts:
        raise SpecError(
            f"the number of stores is {num_stores}, the graph has {num_parts} partitions",
            f"give 0 to {num_parts}, or partition the graph again",
        )
    return num_stores


def _write_credentials(folder: Path, tls: bool) -> Path:
    """Write one file for the stores and one for the trainer and its samplers."""
    token = Secret.random()
    own: dict[str, Credentials] = {name: Credentials(token) for name in ("stores", "trainer")}
    if tls:
        authority = Authority(datetime.now(UTC), _CERTIFICATE_LIFETIME)
        own["stores"] = Credentials(token, authority.issue("stores", [_HOST]))
        own["trainer"] = Credentials(token, authority.issue("trainer"))
    keys = folder / "keys"
    keys.mkdir(mode=0o700)
    for name, credentials in own.items():
        credentials.save(keys / name)
    return keys


def _start_trainer(
    wanted: LocalRun, context: Path, machine: str, output: int | None
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headrace.runtime.trainer", str(os.getpid()), machine]
    # A new session: Ctrl-C reaches it once, and its process group can be killed.
    return subprocess.Popen(
        [*command, str(wanted.script), *wanted.arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if output is None else output,
        stderr=subprocess.STDOUT if output is None else None,
        env={
            "OMP_NUM_THREADS": str(_num_threads(wanted.num_samplers)),
            **os.environ,
            CONTEXT_VARIABLE: str(context),
            "PYTHONUNBUFFERED": "1",
        },
        start_new_session=True,
        text=True,
        errors="replace",
    )


def _num_threads(num_samplers: int) -> int:
    # Oversubscribed OpenMP threads block each other (measured 20x slower on two busy cores).
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores - num_samplers)


def _has_ended(process: subprocess.Popen[str]) -> bool:
    """Whether it has ended; does not reap it, so that its group id stays valid."""
    if process.returncode is not None:
        return True
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, options) is not None


def _end(trainer: subprocess.Popen[str]) -> int:
    """End the trainer and its process group; return its exit code."""
    if trainer.returncode is not None:
        return trainer.returncode
    if not _has_ended(trainer):
        # Like Ctrl-C, so that the script can save its state.
        os.kill(trainer.pid, signal.SIGINT)
        waiting = threading.Event()
        for _ in range(int(_SHUTDOWN_TIMEOUT_S / _POLL_INTERVAL_S)):
            if _has_ended(trainer):
                break
            waiting.wait(_POLL_INTERVAL_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(trainer.pid, signal.SIGKILL)
    return trainer.wait()


def _read_lines(pipe: IO[str] | None, watcher: RunWatcher) -> threading.Thread | None:
    if pipe is None:
        return None

    def read() -> None:
        with pipe:
            for line in pipe:
                watcher.show(line.rstrip("\n"))

    thread = threading.Thread(target=read, name="output of the script", daemon=True)
    thread.start()
    return thread


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End the run on the first signal; ignore further ones."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def run_local_tracked(wanted: LocalRun, track: Sequence[str], watcher: RunWatcher) -> int:
    """Call `run_local` and send the script's reports to trackers; see `make_tracker`."""
    if not track:
        return run_local(wanted, watcher)
    check_trackers(track)
    name = wanted.script.stem
    run = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    tracking = make_tracking(track, runs_folder() / run, name, watcher.log)
    tracking.start(run, {"script": wanted.script.name, **settings_of(wanted.config)})
    state = "failed"
    try:
        code = run_local(wanted, _TrackedWatcher(watcher, tracking))
        state = "failed" if code else "done"
    except KeyboardInterrupt:
        state = "interrupted"
        raise
    finally:
        tracking.finish(state)
    return code


class _TrackedWatcher:
    """A watcher that also sends the script's reports to trackers."""

    def __init__(self, watcher: RunWatcher, tracking: Trackers) -> None:
        self.output = watcher.output
        self.log, self.show = watcher.log, watcher.show
        self._watcher, self._tracking = watcher, tracking

    def notify(self, message: Message) -> None:
        if isinstance(message, Report):
            self._tracking.reported(message.figures)
        self._watcher.notify(message)
