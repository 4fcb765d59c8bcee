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


def test_freed_memory_goes_back_when_asked() -> None:
    code = """
from headrace.graph.service.allocator import keep_freed_memory, return_freed_memory
from headrace.graph.service.residency import anonymous_bytes
keep_freed_memory()
pieces = [bytearray(1 << 16) for _ in range(1000)]
before = anonymous_bytes()
del pieces
kept = anonymous_bytes()
return_freed_memory()
print(before, kept, anonymous_bytes())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, kept, after = map(int, done.stdout.split())
    if sys.platform == "linux":
        assert before - kept < 16 << 20
        assert before - after > 48 << 20
