"""The training step of a script, traced by a process that runs the script up to it."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import SpecError
from headrace.prefork.client import ForkLease
from headrace.profiling.step_estimate.script import EstimateRequest, ScriptStep
from headrace.runtime.protocol.run_context import CONTEXT_VARIABLE, RunContext
from headrace.runtime.trainer.__main__ import ESTIMATE_VARIABLE
from headrace.runtime.workers.task_process import TaskProcess, how_ended


@dataclass(frozen=True)
class AssumedPart:
    """Part of the full graph that a trainer has.

    Attributes:
        trainers: Trainer of each graph partition.
        rank: The trainer.
        bins: Bins of a layer's messages, unless the script sets them.
    """

    trainers: tuple[int, ...]
    rank: int
    bins: int = 1


_HERE = "this machine"
_POLL_S = 0.02
_NUM_TRIES = 2
"""A process that a signal ended is started once more: sweeps go on if an estimate is killed."""


def trace_script(
    script: Path,
    graph: Path,
    arguments: Sequence[str],
    batch_size: int | None,
    is_real: bool,
    config: Mapping[str, Any] | None = None,
    lease: ForkLease | None = None,
    part: AssumedPart | None = None,
) -> ScriptStep | None:
    """Trace the training step of a script; None if it can only be run.

    Args:
        script: The script.
        graph: The partitioned graph.
        arguments: Arguments of the script.
        batch_size: Seeds of a batch; None for the script's.
        is_real: Whether to run a step instead of tracing it.
        config: Settings of the script.
        lease: Fork server that starts the process; none to start a new one.
        part: Part of the trainer, if the script trains on the full graph; else it has all.

    Raises:
        SpecError: The script fails, or does not take batches of a headrace loader.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        request, run, output = (Path(folder) / name for name in ("request", "run", "step"))
        wanted = EstimateRequest(output=output, batch_size=batch_size, is_real=is_real)
        request.write_text(wanted.model_dump_json(), encoding="utf-8")
        # Values of losses are not known.
        context = RunContext(
            machine=_HERE,
            messages=Path(folder) / "messages",
            parts=graph.resolve(),
            output=Path(folder),
            allow_nan=True,
            config=dict(config or {}),
            assumed_trainers=() if part is None else part.trainers,
            assumed_rank=0 if part is None else part.rank,
            bins=1 if part is None else part.bins,
        )
        run.write_text(context.model_dump_json(), encoding="utf-8")
        words = [sys.executable, "-m", "headrace.runtime.trainer", str(os.getpid()), _HERE]
        log = Path(folder) / "output.log"
        for _ in range(_NUM_TRIES):
            process = TaskProcess(
                [*words, str(script), *arguments],
                log,
                {**os.environ, ESTIMATE_VARIABLE: str(request), CONTEXT_VARIABLE: str(run)},
                end_by=signal.SIGINT,
                lease=lease,
            )
            code = _code_of(process)
            if code >= 0 or output.exists():
                break
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if output.exists():
            found = output.read_text(encoding="utf-8")
            return ScriptStep.model_validate_json(found) if found else None
    if code < 0:
        raise SpecError(f"the script {how_ended(code)}", f"run it alone: python {script}")
    if code:
        own = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        last = (own or lines or [f"exit code {code}"])[-1]
        raise SpecError(f"the script failed: {last}", f"run it alone: python {script}")
    raise SpecError(
        "the script took no batch of a headrace loader with gradients enabled",
        "train with headrace.NeighborLoader, LinkNeighborLoader, ctx.loader or ctx.full_graph",
    )


def _code_of(process: TaskProcess) -> int:
    """Wait for the exit code of a process."""
    try:
        while (code := process.code) is None:
            time.sleep(_POLL_S)
    finally:
        process.end()
    return code
