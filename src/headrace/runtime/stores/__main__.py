"""Supervise a store set: `python -m headrace.runtime.stores FOLDER LOCK`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from headrace.core.errors import HeadraceError, RunError
from headrace.policies.lifecycle.events import Outcome
from headrace.runtime.run_dir.run_dir import own_name
from headrace.runtime.run_dir.store_set import StoreSet
from headrace.runtime.stores.supervisor import end_of, supervise


def main(folder: str, lock: str) -> int:
    """Serve until the stores end; returns the exit code. LOCK is the descriptor of the lock."""
    os.set_inheritable(int(lock), False)
    store_set = StoreSet(Path(folder))
    supervisor = own_name().decode().strip()
    store_set.write(store_set.read().model_copy(update={"supervisor": supervisor}))
    try:
        outcome = supervise(store_set, _log)
    except HeadraceError as error:
        outcome = Outcome(problem=error.problem, remedy=error.remedy)
        state = store_set.read()
        store_set.write(state.model_copy(update=end_of(outcome)))
    if not outcome.is_interrupted:
        _log(outcome.problem)
    return 0 if outcome.is_interrupted else RunError.exit_code


def _log(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
