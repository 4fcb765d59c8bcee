"""Checkpoints: two files that are whole, or none."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headrace.core.errors import SpecError  # noqa: E402
from headrace.training.checkpoint_files import (  # noqa: E402
    Position,
    as_plain,
    hold,
    load,
    newest_whole,
    release,
    save,
)
from tests.support.disks import small_disk  # noqa: E402

STATE = {"model": {"weight": torch.arange(6.0)}, "epoch": 3, "names": ["a", None], "lr": (0.1, 2)}


def at(iteration: int) -> Position:
    return Position(iteration=iteration, epoch=3, batch=7, plan="0123", lanes="4567")


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    made = save(tmp_path / "kept", at(400), STATE)
    assert made.path == tmp_path / "kept" / "checkpoint-00000400.pt"
    found = newest_whole(tmp_path / "kept")
    assert found == made
    sidecar, state = load(found.path)
    assert (sidecar.iteration, sidecar.epoch, sidecar.batch) == (400, 3, 7)
    assert (sidecar.plan, sidecar.lanes, sidecar.version) == ("0123", "4567", 1)
    torch.testing.assert_close(state["model"]["weight"], torch.arange(6.0))
    assert {key: state[key] for key in ("epoch", "names", "lr")} == {
        key: STATE[key] for key in ("epoch", "names", "lr")
    }
    # Nothing of headrace is needed for that.
    assert torch.load(made.path, weights_only=True).keys() == STATE.keys()


def test_the_last_ones_stay(tmp_path: Path) -> None:
    for iteration in (100, 200, 99_999_999, 123_456_789):
        save(tmp_path, at(iteration), STATE)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "checkpoint-123456789.json",
        "checkpoint-123456789.pt",
        "checkpoint-99999999.json",
        "checkpoint-99999999.pt",
    ]
    save(tmp_path, at(300_000_000), STATE, keep=1)
    assert len(list(tmp_path.iterdir())) == 2


def test_damaged_checkpoints_do_not_displace_whole_ones(tmp_path: Path) -> None:
    made = {number: save(tmp_path, at(number), STATE, keep=9) for number in (100, 200, 300, 400)}
    for number in (300, 400):
        made[number].path.write_bytes(made[number].path.read_bytes()[:-1])
    # A run that resumed from 200 gets to 250, and is killed.
    newer = save(tmp_path, at(250), STATE)
    assert newest_whole(tmp_path) == newer
    assert made[200].path.exists()
    assert not made[100].path.exists()
    # Of older ones, those that are cut do not count.
    save(tmp_path, at(350), STATE)
    last = save(tmp_path, at(450), STATE)
    numbers = sorted(int(path.stem[-3:]) for path in tmp_path.glob("*.pt"))
    assert numbers == [350, 450]
    assert newest_whole(tmp_path) == last


def test_a_full_disk_is_named_and_costs_no_checkpoint(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        made = save(disk, at(100), STATE)
        large = {"model": torch.zeros(1 << 20)}
        with pytest.raises(OSError, match="No space left") as failed:
            save(disk, at(200), large)
        assert failed.value.errno == errno.ENOSPC
        assert newest_whole(disk) == made
        assert not list(disk.glob(".*"))


def test_a_folder_without_checkpoints(tmp_path: Path) -> None:
    assert newest_whole(tmp_path / "nowhere") is None
    (tmp_path / "checkpoint-new.json").write_text("{}")
    assert newest_whole(tmp_path) is None
    with pytest.raises(SpecError, match="no valid sidecar"):
        load(tmp_path / "checkpoint-00000001.pt")


def test_a_sidecar_of_another_checkpoint_is_not_believed(tmp_path: Path) -> None:
    made = save(tmp_path, at(100), STATE)
    for path in (made.path, made.sidecar_path):
        path.rename(tmp_path / path.name.replace("100", "200"))
    assert newest_whole(tmp_path) is None


def test_a_newer_checkpoint_with_a_flipped_bit_is_passed_over(tmp_path: Path) -> None:
    older, newer = save(tmp_path, at(100), STATE), save(tmp_path, at(200), STATE)
    data = bytearray(newer.path.read_bytes())
    data[len(data) // 2] ^= 1
    newer.path.write_bytes(data)
    assert newest_whole(tmp_path) == older
    with pytest.raises(SpecError, match="is damaged"):
        load(newer.path)


def test_a_checkpoint_that_is_written_again_is_never_mixed(tmp_path: Path) -> None:
    save(tmp_path, at(100), STATE)
    made = save(tmp_path, at(100), {"model": {}})
    assert newest_whole(tmp_path) == made
    assert load(made.path)[1] == {"model": {}}


def test_copies_are_plain_and_stay_as_they_are() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    copy = as_plain(
        {"w": weight, "lr": np.float64(0.5), "n": np.int64(3), "ids": {1}, "t": (1, [True])}, "it"
    )
    with torch.no_grad():
        weight += 1
    assert copy["w"].tolist() == [1, 1]
    assert not copy["w"].requires_grad
    assert type(copy["lr"]) is float
    assert {key: value for key, value in copy.items() if key != "w"} == {
        "lr": 0.5,
        "n": 3,
        "ids": [1],
        "t": (1, [True]),
    }


@pytest.mark.parametrize("value", [object(), print, np.ones(2), {"a": [len]}])
def test_what_cannot_be_kept_is_named(value: Any) -> None:
    with pytest.raises(SpecError, match=r"a checkpoint cannot hold scheduler.* of type "):
        as_plain(value, "scheduler")


def test_checkpoints_do_not_count_before_the_graph_is_verified(tmp_path: Path) -> None:
    def newest() -> int | None:
        found = newest_whole(tmp_path)
        return None if found is None else found.sidecar.iteration

    save(tmp_path, at(1), {})
    hold(tmp_path)
    for iteration in (2, 3, 4, 5):
        save(tmp_path, at(iteration), {})
    # The one that counts is kept, however many there are.
    assert newest() == 1
    release(tmp_path)
    assert newest() == 5
    hold(tmp_path)
    save(tmp_path, at(6), {})
    # Whoever held it is gone: nobody knows what the last one was made of.
    hold(tmp_path)
    release(tmp_path)
    assert newest() == 5
