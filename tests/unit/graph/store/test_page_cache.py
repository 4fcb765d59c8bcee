from __future__ import annotations

from pathlib import Path

import numpy as np

from headrace.graph.store.page_cache import PageCacheWarmer, resident_bytes
from headrace.linux.memory import memory_bytes


def test_a_warmed_file_is_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    np.arange(1_000_000, dtype=np.int32).tofile(path)
    warmer = PageCacheWarmer([path])
    assert (warmer.read_bytes, warmer.total_bytes) == (0, 4_000_000)
    warmer.start()
    assert warmer.wait(60)
    assert warmer.read_bytes == 4_000_000
    mapped = np.memmap(path, np.int32, "r")
    assert resident_bytes(mapped) == 4_000_000
    warmer.close()


def test_residency_of_nothing() -> None:
    assert resident_bytes(np.empty(0, np.float32)) == 0


def test_memory_of_this_process_is_known() -> None:
    assert memory_bytes() > 1_000_000
    assert memory_bytes(pid=0) == 0
