from __future__ import annotations

import subprocess
import sys


def test_memory_is_kept_in_a_process_that_asks_for_it() -> None:
    # In a process of its own: the setting cannot be taken back.
    code = "from headrace.graph.service.allocator import keep_freed_memory as k; print(k())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("True", "False")
    if sys.platform == "linux":
        assert done.stdout.strip() == "True"
