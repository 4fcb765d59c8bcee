"""Graph stores of a run, as processes on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from headrace.core.errors import MissingExtraError, RunError
from headrace.graph.sampler_worker.config import StoreAddress
from headrace.graph.store.config import StoreConfig
from headrace.runtime.workers.task_process import how_ended

START_TIMEOUT_S = 120.0
"""A store maps files and is there in a second or two; compiling kernels once takes longer."""

_LOOK_S = 0.02
_PATIENCE_S = 2.0
_LOG_BYTES = 4096


class StoreProcess:
    """A store that lives as long as this process wants, and never longer than it.

    Args:
        config: What to serve.
        machine: Name of this machine, for messages.
        folder: For its configuration and its log.

    Attributes:
        name: Task and machine, for messages.
    """

    def __init__(self, config: StoreConfig, machine: str, folder: Path) -> None:
        self._task, self._machine = f"store {config.part}", machine
        self.name = f"{self._task} on {machine}"
        self._config = config
        self._log = folder / f"store-{config.part}.log"
        path = folder / f"store-{config.part}.json"
        path.write_text(config.model_dump_json(), encoding="utf-8")
        with self._log.open("wb") as log:
            # Ctrl-C is for the run, which ends its stores after their trainer.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.graph.store", "--config", str(path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def wait_until_ready(self) -> StoreAddress:
        """Where it is, once it serves.

        Raises:
            RunError: It ended, or takes too long.
        """
        end_s = time.monotonic() + START_TIMEOUT_S
        while not self._config.ready.exists():
            self.check()
            if time.monotonic() > end_s:
                raise RunError(
                    f"{self.name} does not serve after {START_TIMEOUT_S:.0f} s{self._last_words()}",
                    "look whether the disk of the parts is slow",
                )
            time.sleep(_LOOK_S)
        port = json.loads(self._config.ready.read_text(encoding="ascii"))["port"]
        return StoreAddress(
            part=self._config.part,
            task=self._task,
            machine=self._machine,
            host=self._config.host,
            port=port,
        )

    def check(self) -> None:
        """See that it lives.

        Raises:
            RunError: It does not.
        """
        code = self._process.poll()
        if code is not None:
            is_missing = code == MissingExtraError.exit_code
            remedy = "pip install 'headrace[train]'" if is_missing else "run again"
            raise RunError(f"{self.name} {how_ended(code)}{self._last_words()}", remedy)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = self._log.read_bytes()[-_LOG_BYTES:].decode(errors="replace").split("\n")
            said = [line.strip() for line in lines if "ERROR" in line or "Error" in line]
            return f"; it said: {said[-1]}" if said else ""
        return ""
