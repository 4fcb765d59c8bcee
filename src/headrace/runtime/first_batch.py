"""What a run waits for until its trainer has had a batch: imports and compiling take their time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TELL_EVERY_S = 10.0
"""How long a run says nothing; whoever watches shall not wait 15 s for a word."""

ASKED = {"kind": "asked"}
"""What a loader sends when a script begins to loop over it."""


class FirstBatch:
    """Says now and then what a run waits for, until the first batch has come.

    Args:
        now_s: When the script was started, by any clock.
    """

    def __init__(self, now_s: float) -> None:
        self._began_s = self._told_s = now_s
        self._asked = self._is_over = False

    def see(self, message: Mapping[str, Any]) -> None:
        """Take note of what the trainer sends."""
        self._asked = self._asked or message.get("kind") == ASKED["kind"]
        self._is_over = self._is_over or message.get("kind") in ("batches", "report")

    def look(self, now_s: float) -> str:
        """A line if it is time for one."""
        if self._is_over or now_s - self._told_s < TELL_EVERY_S:
            return ""
        self._told_s = now_s
        what = (
            "the first batch; the first run of all compiles the samplers"
            if self._asked
            else "the script to ask a headrace loader for a batch"
        )
        return f"no batch after {now_s - self._began_s:.0f} s: waits for {what}"
