from __future__ import annotations

import subprocess
import sys


def test_memory_is_kept_in_a_process_that_asks_for_it() -> None:
    # In a process of its own: the setting cannot be taken back.
    code = "from headrace.linux.malloc import keep_freed_memory as k; print(k())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("True", "False")
    if sys.platform == "linux":
        assert done.stdout.strip() == "True"


def test_freed_memory_goes_back_when_asked() -> None:
    code = """
from headrace.linux.malloc import keep_freed_memory, return_freed_memory
from headrace.linux.memory import memory_bytes
keep_freed_memory()
pieces = [bytearray(1 << 16) for _ in range(1000)]
before = memory_bytes()
del pieces
kept = memory_bytes()
return_freed_memory()
print(before, kept, memory_bytes())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, kept, after = map(int, done.stdout.split())
    if sys.platform == "linux":
        assert before - kept < 16 << 20
        assert before - after > 48 << 20


def test_what_threads_freed_goes_back_too() -> None:
    code = """
import ctypes
import threading
from headrace.linux.malloc import return_freed_memory, share_one_heap
from headrace.linux.memory import memory_bytes

share_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
# As glibc raises it by itself once a large message was freed.
libc.mallopt(-1, 64 << 20)
pieces = [None] * 800

def fill_and_free():
    for i in range(len(pieces)):
        pieces[i] = libc.malloc(1 << 16)
        ctypes.memset(pieces[i], 1, 1 << 16)
    for piece in reversed(pieces):
        libc.free(piece)

before = memory_bytes()
for _ in range(3):
    thread = threading.Thread(target=fill_and_free)
    thread.start()
    thread.join()
    return_freed_memory()
print(memory_bytes() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if sys.platform == "linux":
        assert int(done.stdout) < 16 << 20
