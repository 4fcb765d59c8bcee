"""A checkpoint that is not whole is never taken, whatever is missing of it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from headrace.core.errors import SpecError  # noqa: E402
from headrace.training.checkpoint_files import (  # noqa: E402
    Checkpoint,
    Position,
    load,
    newest_whole,
    save,
)


def make(folder: Path, num_values: int = 5) -> tuple[Checkpoint, Checkpoint]:
    """An older checkpoint and a newer one."""
    state = {"model": {"weight": torch.arange(num_values)}}
    older, newer = (
        save(folder, Position(iteration=i, epoch=0, batch=i), state) for i in (100, 200)
    )
    return older, newer


def is_refused(folder: Path, older: Checkpoint, newer: Checkpoint) -> bool:
    """Whether nobody can take the newer one for a checkpoint."""
    try:
        load(newer.path)
    except SpecError:
        return newest_whole(folder) == older
    return False


@pytest.mark.slow
def test_a_checkpoint_cut_at_any_byte_is_never_loaded(tmp_path: Path) -> None:
    older, newer = make(tmp_path)
    for path in (newer.path, newer.sidecar_path):
        whole = path.read_bytes()
        assert len(whole) > 100
        for size in range(len(whole)):
            path.write_bytes(whole[:size])
            assert is_refused(tmp_path, older, newer), (path.name, size)
        path.write_bytes(whole)
    assert newest_whole(tmp_path) == newer


@given(
    num_values=st.integers(0, 2000),
    cut=st.floats(0, 1, exclude_max=True),
    other=st.booleans(),
    instead=st.sampled_from(["cut", "missing", "zeros"]),
)
@settings(max_examples=60, deadline=None)
def test_a_checkpoint_that_lost_something_is_never_loaded(
    num_values: int, cut: float, other: bool, instead: str
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        older, newer = make(folder, num_values)
        path = newer.sidecar_path if other else newer.path
        whole = path.read_bytes()
        size = int(cut * len(whole))
        if instead == "missing":
            path.unlink()
        else:
            # Some file systems leave zeros where bytes had not reached the disk.
            rest = bytes(len(whole) - size) if instead == "zeros" else b""
            path.write_bytes(whole[:size] + rest)
        if path.exists() and path.read_bytes() == whole:
            return  # what became zeros were zeros
        assert is_refused(folder, older, newer)


@given(
    where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), num_values=st.integers(0, 50)
)
@settings(max_examples=60, deadline=None)
def test_a_bit_that_turned_is_found(where: float, bit: int, num_values: int) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        older, newer = make(folder, num_values)
        data = bytearray(newer.path.read_bytes())
        data[int(where * len(data))] ^= 1 << bit
        newer.path.write_bytes(data)
        assert is_refused(folder, older, newer)
