"""What of the user's folder goes to the machines."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from headrace.core.errors import SpecError
from headrace.runtime.controller import code_archive
from headrace.runtime.controller.code_archive import pack


def nothing(line: str) -> None:
    raise AssertionError(line)


def names(packed: bytes) -> set[str]:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return set(archive.namelist())


def test_code_is_packed_and_the_rest_is_not(tmp_path: Path) -> None:
    for name in (
        "train.py", "pack/a.py", "data.csv", ".git/x", "__pycache__/train.pyc",
        "parts/manifest.json", "parts/ids/node-0.bin", "parts/part-0/x.bin",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert names(pack(tmp_path, tmp_path / "train.py", nothing)) == {
        "train.py",
        "pack/a.py",
        "data.csv",
    }


def test_the_script_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "train.py").write_text("")
    with pytest.raises(SpecError, match="is not in"):
        pack(tmp_path / "a", tmp_path / "train.py", nothing)


def test_too_much_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_archive, "MAX_BYTES", 1 << 20)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "big.csv").write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(SpecError, match="more than 1 MiB") as error:
        pack(tmp_path, tmp_path / "train.py", nothing)
    assert "--working-dir" in error.value.remedy


def test_large_files_are_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_archive, "MAX_FILE_BYTES", 1 << 20)
    for name, size in {"train.py": 2 << 20, "small.csv": 1 << 20, "data/big.pt": 3 << 20}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    said: list[str] = []
    packed = pack(tmp_path, tmp_path / "train.py", said.append)
    assert names(packed) == {"train.py", "small.csv"}
    assert said == ["files over 1 MiB are not sent to trainers: data/big.pt (3.146 MB)"]
