import os
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.linux.atomic_write import atomic_path, atomic_write


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_replaced_whole(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "a.json"
    path.write_text("before")
    atomic_write(path, "äfter\n", sync)
    assert path.read_bytes() == "äfter\n".encode()
    assert os.listdir(tmp_path) == ["a.json"]


def test_content_is_on_disk_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "a.json", []

    def fsync(fd: int) -> None:
        seen.append((os.fstat(fd).st_size, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    atomic_write(path, "text")
    assert not seen
    path.unlink()
    atomic_write(path, "text", sync=True)
    assert seen == [(4, False)]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"before")
    with suppress(KeyboardInterrupt), atomic_path(path) as partial:
        partial.write_bytes(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["a.bin"]
