"""Disks: full ones, and what is left of files when a machine loses power."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.simulation.world import World

FSYNC_S = 0.02
"""Longest time of an fsync."""


class Disks:
    """The disks of all machines: one folder each below `root`.

    Attributes:
        full: Names of machines whose disk is full.
        durable: Content of files by inode, and of folders by path, as of their last fsync.
        num_changes: Times at which a checkpoint may have changed.
    """

    def __init__(self, world: World, root: Path) -> None:
        self._world, self.root = world, root
        self.full: set[str] = set()
        self.contents: dict[int, bytes] = {}
        self.entries: dict[str, dict[str, int]] = {}
        self.num_refused = self.num_changes = 0

    def folder(self, machine: str, name: str) -> Path:
        """A folder on a machine."""
        path = self.root / machine / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def check_space(self, path: str) -> None:
        """Raise an error if the disk is full."""
        machine = Path(path).relative_to(self.root).parts[0]
        if machine in self.full:
            self.num_refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def sync(self, descriptor: int) -> None:
        """Make a file or a folder durable."""
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self.num_changes += 1
        is_folder = os.path.isdir(path)
        if not is_folder:
            self.check_space(path)
        if self._world.current is not None and self._world.current.may_block:
            self._world.sleep(self._world.random.uniform(0.0, FSYNC_S))
        self.num_changes += 1
        if is_folder:
            self.entries[path] = {each.name: each.inode() for each in os.scandir(path)}
        else:
            inode = os.fstat(descriptor).st_ino
            self.contents[inode] = Path(path).read_bytes()

    def lose_power(self, folder: Path) -> None:
        """Drop what is not durable, or some of it, from a folder."""
        found = {path.name: path for path in _files(folder)}
        durable = self.entries.get(str(folder), {})
        random = self._world.random
        left: dict[str, bytes] = {}
        for name in sorted(found.keys() | durable.keys()):
            path = found.get(name)
            inode = None if path is None else path.stat().st_ino
            if inode != durable.get(name) and random.random() < 0.5:
                # The change of this name was not written in time.
                inode, path = durable.get(name), None
            if inode is None:
                continue
            if inode in self.contents:
                left[name] = self.contents[inode]
            elif path is not None:
                data = path.read_bytes()
                kept = random.randrange(len(data) + 1) if len(data) else 0
                left[name] = data[:kept] + bytes(len(data) - kept)
        for path in found.values():
            path.unlink()
        for name, data in left.items():
            (folder / name).write_bytes(data)
            self.contents[(folder / name).stat().st_ino] = data
        if folder.is_dir():
            self.entries[str(folder)] = {each.name: each.inode() for each in os.scandir(folder)}

    def flip_bit(self, path: Path) -> None:
        """Flip one bit of a file."""
        self.num_changes += 1
        data = bytearray(path.read_bytes())
        if data:
            bit = self._world.random.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            self.contents[path.stat().st_ino] = bytes(data)


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in sorted(folder.iterdir()) if path.is_file())


class VirtualOs:
    """Stands for module `os` where files become durable."""

    def __init__(self, disks: Disks) -> None:
        self._disks = disks

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        """Make a file or a folder durable, if the disk is not full."""
        self._disks.sync(descriptor)

    def posix_fallocate(self, descriptor: int, offset: int, length: int) -> None:
        """Take space, if the disk is not full."""
        self._disks.check_space(os.readlink(f"/proc/self/fd/{descriptor}"))
        os.posix_fallocate(descriptor, offset, length)
