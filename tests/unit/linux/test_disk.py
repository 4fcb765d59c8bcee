"""Files on disks that are full."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from headrace.linux.disk import append_whole, has_space, is_full, reserve
from tests.support.disks import fill, small_disk


def test_data_is_appended_as_a_whole_or_not(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        path = disk / "log"
        append_whole(path, b"first\n")
        assert has_space(disk)
        filler = fill(disk)
        with pytest.raises(OSError, match="No space left") as failed:
            append_whole(path, bytes(1 << 16))
        assert is_full(failed.value)
        assert not has_space(disk)
        assert path.read_bytes() == b"first\n"
        # Room for a part of it.
        filler.write_bytes(bytes(filler.stat().st_size - (1 << 15)))
        with pytest.raises(OSError, match="No space left"):
            append_whole(path, bytes(1 << 16))
        assert path.read_bytes() == b"first\n"
        filler.unlink()
        append_whole(path, b"second\n")
        assert path.read_bytes() == b"first\nsecond\n"


def test_reserved_space_is_there(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        reserve(disk / "rows", 1 << 19)
        fill(disk)
        with (disk / "rows").open("r+b") as file:
            file.write(b"1" * (1 << 19))
        with pytest.raises(OSError, match="No space left") as failed:
            reserve(disk / "rows", 1 << 20)
        assert (failed.value.errno, failed.value.filename) == (errno.ENOSPC, str(disk / "rows"))
    assert has_space(tmp_path / "nowhere")
