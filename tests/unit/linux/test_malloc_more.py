from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own: the setting cannot be taken back.
CODE = """
import resource
import numpy as np
from headrace.linux.malloc import reuse_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

{call}
for _ in range(3):
    np.ones(10_000_000)  # 80 MB
before = faults()
for _ in range(5):
    np.ones(10_000_000)
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_freed_memory_is_used_again() -> None:
    found = {}
    for call in ("", "assert reuse_memory()"):
        code = CODE.format(call=call)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        found[call] = int(done.stdout)
    assert found["assert reuse_memory()"] < found[""] / 10


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_what_is_reserved_takes_no_memory() -> None:
    code = """
from headrace.linux.memory import memory_bytes
from headrace.linux.malloc import reuse_memory
before = memory_bytes()
reuse_memory()
print(memory_bytes() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 << 20
