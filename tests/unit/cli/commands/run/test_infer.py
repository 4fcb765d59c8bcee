"""`headrace infer` and `headrace export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
pq = pytest.importorskip("pyarrow.parquet")

from headrace.cli import app  # noqa: E402
from headrace.runtime.run_dir.run_dir import RunDirectory  # noqa: E402
from headrace.training.checkpoint_files import Position, save  # noqa: E402
from headrace.training.export import load_weights  # noqa: E402
from headrace.training.models import make_model  # noqa: E402
from tests.unit.graph.small_graphs import homogeneous, write  # noqa: E402

SCRIPT = """
from headrace.training.models import make_model as make

def make_model(config):
    return make("gat", 5, config["width"], 7)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(homogeneous(), tmp_path / "parts", num_parts=2)
    torch.save(make_model("gcn", 5, 16, 7, num_layers=3).state_dict(), tmp_path / "best.pt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_infer(folder: Path) -> None:
    words = "infer best.pt --model gcn --graph parts -o out --write prediction,embedding"
    done = run(*words.split(), "--memory", "1MB", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["num_nodes"] == {"node": 30}
    assert set(found["accuracy"]["node"]) == {"train", "val", "test"}
    table = pq.read_table(found["tables"]["node"])
    assert table.column_names == ["node", "prediction", "embedding"]
    assert table["embedding"].type.list_size == 16
    shown = run(*words.split())
    assert shown.exit_code == 0
    assert "30 nodes are in out/nodes.parquet." in shown.stdout
    assert "Accuracy: train" in shown.stdout


def test_infer_with_a_model_of_a_script(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT)
    torch.save(make_model("gat", 5, 6, 7).state_dict(), folder / "gat.pt")
    words = "infer gat.pt --model train.py --set width=6 --graph parts -o out --json"
    done = run(*words.split())
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["widths"] == {"node": 7}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("infer best.pt --model sage --graph parts -o out", "do not match sage"),
        ("infer best.pt --model mlp --graph parts -o out", "neither a script nor one of"),
        ("infer none.pt --model sage --graph parts -o out", "the file none.pt does not exist"),
        ("infer best.pt --model gcn --graph parts -o out --write all", "unknown column 'all'"),
        ("infer best.pt --model gcn --graph parts -o out --memory lots", "is not a size"),
        ("export none.pt -o model.pt", "the file none.pt does not exist"),
        ("export best.pt -o none/model.pt", "cannot be written"),
    ],
)
def test_what_is_wrong_is_said(words: str, said: str, folder: Path) -> None:
    done = run(*words.split())
    assert done.exit_code == 2, done.output
    assert said in done.stderr


def test_a_script_without_the_function_and_with_another_model(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT)
    words = ["infer", "best.pt", "--graph", "parts", "-o", "out", "--set", "width=6", "--model"]
    done = run(*words, "train.py:build")
    assert (done.exit_code, "has no function build" in done.stderr) == (2, True)
    done = run(*words, "train.py")
    assert (done.exit_code, "do not match train.py" in done.stderr) == (2, True)


def test_export_of_a_run(folder: Path) -> None:
    pytest.importorskip("safetensors")
    with RunDirectory.create(folder / "runs", "job") as made:
        words = ["export", made.run_id, "--runs", "runs", "-o", "model.safetensors"]
        done = run(*words)
        assert (done.exit_code, "saved no model" in done.stderr) == (2, True)
        state = torch.load(folder / "best.pt")
        save(made.path / "checkpoints", Position(iteration=4, epoch=0, batch=4), {"model": state})
        done = run(*words, "--json")
        assert json.loads(done.stdout)["weights"].endswith("checkpoint-00000004.pt"), done.output
        (folder / "best.pt").rename(made.best)
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["num_tensors"] == 6
    assert found["bytes"] == (folder / "model.safetensors").stat().st_size
    assert len(load_weights(folder / "model.safetensors")) == 6
    shown = run("export", "model.safetensors", "-o", "model.pt")
    assert shown.exit_code == 0
    assert "6 tensors" in shown.stdout
    assert torch.load(folder / "model.pt").keys() == load_weights(made.best).keys()
