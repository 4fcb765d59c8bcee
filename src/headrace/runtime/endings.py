"""How processes of a run end."""

from __future__ import annotations

import signal


def how_ended(code: int) -> str:
    """What became of a process, for messages."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", perhaps because memory was full" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"
