"""Entry point of the agent process: `python -m headrace.runtime.traffic FILE`."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType

from headrace.runtime.traffic.agent import AgentConfig, serve


def main() -> None:
    """Serve until standard input closes, the controller disconnects, or SIGTERM."""
    signal.signal(signal.SIGTERM, _end)
    path = Path(sys.argv[1])
    serve(AgentConfig(**json.loads(path.read_bytes())))


def _end(number: int, frame: FrameType | None) -> None:
    # Raise, so that the NIC's original configuration is restored.
    sys.exit(0)


if __name__ == "__main__":
    main()
