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
"""A store starts in one or two seconds; compiling kernels once takes longer."""

_POLL_INTERVAL_S = 0.02
_CLOSE_TIMEOUT_S = 2.0
_LOG_BYTES = 4096


class StoreProcess:
    """A store process, which exits with this process at the latest."""

    def __init__(self, config: StoreConfig, machine: str, folder: Path) -> None:
        self._task, self._machine = f"store {config.part}", machine
        self.name = f"{self._task} on {machine}"
        self._config = config
        self._log = folder / f"store-{config.part}.log"
        path = folder / f"store-{config.part}.json"
        path.write_text(config.model_dump_json(), encoding="utf-8")
        with self._log.open("wb") as log:
            # Own session: the run handles Ctrl-C and stops stores after their trainer.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.graph.store", "--config", str(path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """PID of the process."""
        return self._process.pid

    def wait_until_ready(self) -> StoreAddress:
        """Wait until the store serves; raises `RunError` if it exits or is late."""
        end_s = time.monotonic() + START_TIMEOUT_S
        while not self._config.ready.exists():
            self.check()
            if time.monotonic() > end_s:
                raise RunError(
                    f"{self.name} did not start in {START_TIMEOUT_S:.0f} s{self._last_error()}",
                    "check whether the disk of the graph is slow",
                )
            time.sleep(_POLL_INTERVAL_S)
        port = json.loads(self._config.ready.read_text(encoding="ascii"))["port"]
        return StoreAddress(
            part=self._config.part,
            task=self._task,
            machine=self._machine,
            host=self._config.host,
            port=port,
        )

    def check(self) -> None:
        """Raise `RunError` if the process exited."""
        code = self._process.poll()
        if code is not None:
            is_missing = code == MissingExtraError.exit_code
            remedy = "pip install 'headrace[train]'" if is_missing else "run again"
            raise RunError(f"{self.name} {how_ended(code)}{self._last_error()}", remedy)

    def close(self) -> None:
        """Stop the process."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_error(self) -> str:
        with suppress(OSError):
            lines = self._log.read_bytes()[-_LOG_BYTES:].decode(errors="replace").split("\n")
            errors = [line.strip() for line in lines if "ERROR" in line or "Error" in line]
            return f"; last error: {errors[-1]}" if errors else ""
        return ""
