"""Atomic writes: readers of a file, also after a crash, find the old or the new content."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def atomic_write(path: Path, text: str, sync: bool = False) -> None:
    """Write a file atomically; `sync` fsyncs the content before the file gets its name."""
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(text)
        if sync:
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a hidden path beside `path` to write to; it is renamed, or removed after an error."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
