"""Parameters in files that others read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
pytest.importorskip("safetensors")

from headrace.core.errors import SpecError  # noqa: E402
from headrace.training.export import load_weights, save_weights  # noqa: E402
from headrace.training.models import make_model  # noqa: E402

READER = """
import sys
import torch
import safetensors.torch
from torch_geometric.nn import GraphSAGE
for state in (safetensors.torch.load_file(sys.argv[1]), torch.load(sys.argv[2])):
    model = GraphSAGE(5, 8, 2, 3)
    model.load_state_dict(state)
    assert not any(name.split(".")[0] == "headrace" for name in sys.modules)
    try:
        import headrace
    except ImportError:
        print(repr(float(sum(value.double().sum() for value in state.values()))))
"""
NAMES = ("model.safetensors", "model.pt")


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return make_model("sage", 5, 8, 3)


@pytest.mark.integration
def test_a_process_without_headrace_loads_it(model: Any, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in NAMES]
    for path in paths:
        save_weights(model.state_dict(), path)
    # An editable headrace is on the path of this Python, so it is given all other packages.
    packages = Path(torch.__file__).parents[1]
    links = tmp_path / "packages"
    links.mkdir()
    for entry in packages.iterdir():
        if "headrace" not in entry.name.lower() and entry.suffix != ".pth":
            (links / entry.name).symlink_to(entry)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["PYTHONPATH"] = str(links)
    command = [sys.executable, "-S", "-c", READER, *map(str, paths)]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    total = float(sum(value.double().sum() for value in model.state_dict().values()))
    assert [float(line) for line in done.stdout.split()] == pytest.approx([total] * 2, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_written_is_read(name: str, model: Any, tmp_path: Path) -> None:
    save_weights(model.state_dict(), tmp_path / name)
    found = load_weights(tmp_path / name)
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[key], value) for key, value in model.state_dict().items())
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_checkpoints_and_models_of_ddp(model: Any, tmp_path: Path) -> None:
    torch.save({"model": model.state_dict(), "optimizer": {}}, tmp_path / "checkpoint.pt")
    assert load_weights(tmp_path / "checkpoint.pt").keys() == model.state_dict().keys()
    wrapped = {f"module.{name}": value for name, value in model.state_dict().items()}
    torch.save(wrapped, tmp_path / "ddp.pt")
    assert load_weights(tmp_path / "ddp.pt").keys() == model.state_dict().keys()


def test_tensors_with_two_names(tmp_path: Path) -> None:
    rows = torch.arange(6.0).reshape(2, 3)
    save_weights({"a": rows, "b": rows, "c": rows.t()}, tmp_path / "tied.safetensors")
    found = load_weights(tmp_path / "tied.safetensors")
    assert torch.equal(found["b"], rows)
    assert torch.equal(found["c"], rows.t())


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    for name in ("text.pt", "text.safetensors"):
        (tmp_path / name).write_text("no model at all, but a text that is long enough")
        with pytest.raises(SpecError, match=r"cannot be read|not a safetensors"):
            load_weights(tmp_path / name)
    with pytest.raises(SpecError, match="there is no file"):
        load_weights(tmp_path / "none.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(SpecError, match="holds no parameters"):
        load_weights(tmp_path / "list.pt")
    torch.save({"a": torch.nn.Linear(1, 1)}, tmp_path / "code.pt")
    with pytest.raises(SpecError, match="cannot be read"):
        load_weights(tmp_path / "code.pt")
    with pytest.raises(SpecError, match="not a tensor"):
        save_weights({"a": 3}, tmp_path / "numbers.safetensors")
