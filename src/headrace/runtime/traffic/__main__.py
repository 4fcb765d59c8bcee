"""The agent of a machine as a process: `python -m headrace.runtime.traffic FILE`."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType

from headrace.runtime.traffic.agent import AgentConfig, serve


def main() -> None:
    """Serve until standard input closes, or the controller hangs up, or SIGTERM."""
    signal.signal(signal.SIGTERM, _end)
    path = Path(sys.argv[1])
    serve(AgentConfig(**json.loads(path.read_bytes())))


def _end(number: int, frame: FrameType | None) -> None:
    # An exception, so that the network card gets back what it had.
    sys.exit(0)


if __name__ == "__main__":
    main()
