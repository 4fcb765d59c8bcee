"""Runs the blocks of one page, one after the other, in one folder."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

import headrace
from headrace.api.documents.load import load_cluster, load_job, load_placement, load_profile
from tests.docs.blocks import ROOT, Block


def _load_placement(path: Path) -> object:
    return load_placement(path, load_cluster(path.with_name("cluster.yaml")))


LOADERS: dict[str, Callable[[Path], object]] = {
    "cluster.yaml": load_cluster,
    "job.yaml": load_job,
    "placement.yaml": _load_placement,
    "profile.yaml": load_profile,
}
"""Files that are read as headrace reads them, where a page has them."""

BLOCK_S = 900.0
"""No block takes half a minute, but compilers and two cores are shared."""

_BORROWED = ("examples", "benchmarks", "tests")


class PageRun:
    """What a reader has who types a page: a folder, a shell, a Python that remembers.

    Args:
        folder: Empty; pages find the repository's examples in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed = ""
        self._names: dict[str, Any] = {"__name__": "page"}
        for name in _BORROWED:
            (folder / name).symlink_to(ROOT / name)
        self._commands = folder / ".bin"
        self._commands.mkdir()
        self._environ = {
            **os.environ,
            "HOME": str(folder),
            "HEADRACE_RUNS": str(folder / "runs"),
            "COLUMNS": "120",
            "PATH": os.pathsep.join(
                (str(self._commands), str(Path(sys.executable).parent), os.environ["PATH"])
            ),
        }
        if not (Path(sys.executable).parent / "headrace").exists():
            self._environ["PYTHONPATH"] = str(Path(headrace.__file__).parents[1])
            self._command("headrace", f'exec {sys.executable} -m headrace "$@"')

    def leave_a_run(self, name: str) -> None:
        """Write the folder of a run that went as rehearsed, for pages that look back at one."""
        runs = self.folder / "runs"
        runs.mkdir()
        subprocess.run(
            [sys.executable, ROOT / "benchmarks" / "first_report.py", runs / name],
            cwd=ROOT / "examples" / "testbed",
            env=self._environ,
            check=True,
        )
        (runs / name / "driver.lock").touch()  # by which runs are found

    def run(self, blocks: Sequence[Block]) -> None:
        """Run all blocks that are to be run, and compare what they print."""
        for block in blocks:
            if block.is_output:
                said = f"{block.place} shows\n{block.text}\nbut this was printed:\n{self.printed}"
                assert shows(block.text, self.printed, block.mark == "numbers differ"), said
            elif block.is_run:
                self._run(block)

    def _run(self, block: Block) -> None:
        if block.title is not None:
            (self.folder / block.title).write_text(block.text)
        if block.language == "yaml":
            self._read(block)
        elif block.language == "json":
            json.loads(block.text)
        elif block.is_shell:
            self._type(block)
        elif block.title is None:
            said = io.StringIO()
            with contextlib.redirect_stdout(said), warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of PyG, about torch
                exec(compile(block.text, block.place, "exec"), self._names)
            self.printed += said.getvalue()

    def _type(self, block: Block) -> None:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=self.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BLOCK_S,
            check=False,
        )
        assert done.returncode == 0, f"{block.place} ended with {done.returncode}:\n{done.stdout}"
        self.printed += done.stdout

    def _read(self, block: Block) -> None:
        if block.title in LOADERS:
            LOADERS[block.title](self.folder / block.title)
        else:
            yaml.safe_load(block.text)

    def _command(self, name: str, text: str) -> None:
        path = self._commands / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)


def shows(shown: str, printed: str, numbers_differ: bool = False) -> bool:
    """Whether the shown lines were printed, in this order.

    A line `...` stands for any lines, and `...` in a line for anything there.
    """
    form = _words if numbers_differ else str.rstrip
    seen = [form(line) for line in printed.splitlines()]
    at = 0
    for piece in re.split(r"^\.\.\.$\n?", shown, flags=re.MULTILINE):
        wanted = [_pattern(form(line)) for line in piece.strip("\n").splitlines()]
        starts = range(at, len(seen) - len(wanted) + 1)
        fitting = (start for start in starts if _fit(wanted, seen[start:]))
        start = next(fitting, None)
        if start is None:
            return False
        at = start + len(wanted)
    return True


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, line.split("..."))))


def _fit(wanted: Sequence[re.Pattern[str]], seen: Sequence[str]) -> bool:
    return all(one.fullmatch(line) for one, line in zip(wanted, seen, strict=False))


_UNITS = "ns|us|µs|ms|s|min|B|KB|MB|GB|[KMG]?bps|%"
_NUMBER = re.compile(rf"[-+\N{{MINUS SIGN}}]?\d[\d,.:-]*(?:\s?(?:{_UNITS})(?![A-Za-z]))?")


def _words(line: str) -> str:
    """A line without what differs each time: folders, numbers with their units, alignment."""
    return " ".join(_NUMBER.sub("#", re.sub(r"/\S+/", "", line)).split())
