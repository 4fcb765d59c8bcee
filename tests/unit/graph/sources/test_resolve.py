from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.sources.resolve import open_source
from tests.unit.graph.sources.test_planetoid import PLANETOID, save


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return save(tmp_path, PLANETOID)


def test_a_file_or_the_folder_of_one_file(file: Path) -> None:
    assert open_source(str(file), 0).num_nodes == 3
    assert open_source(str(file.parent), 0).num_nodes == 3


def test_a_generated_graph_takes_the_seed() -> None:
    text = "generated:nodes=3000,edges=6000,features=4"
    one, other = (next(iter(open_source(text, seed).edges[0].chunks()))[0] for seed in (1, 2))
    same = next(iter(open_source(f"{text},seed=2", 1).edges[0].chunks()))[0]
    assert np.array_equal(other, same)
    assert not np.array_equal(one, other)


def test_a_folder_of_several_graphs_lists_them(file: Path) -> None:
    (file.parent / "other.npz").write_bytes(file.read_bytes())
    with pytest.raises(SpecError, match=r"has 2 graphs: choose one: .*other.npz.*small.npz"):
        open_source(str(file.parent), 0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.npz", "does not exist: give a .pt file"),
        ("notes.txt", "not a supported file type"),
        ("empty", "has no graph"),
        ("broken.pt", "cannot be loaded"),
        ("broken.npz", "cannot be read as npz"),
        ("broken.tar.gz", "cannot be read as an archive"),
        ("broken.yaml", "has no keys"),
    ],
)
def test_unknown_things_list_what_is_understood(tmp_path: Path, name: str, said: str) -> None:
    if name.endswith(".pt"):
        pytest.importorskip("torch_geometric")
    if name.startswith("broken"):
        (tmp_path / name).write_text("broken")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match=said):
        open_source(str(tmp_path / name), 0)


class TestPyg:
    torch: Any
    data: Any

    @pytest.fixture(autouse=True)
    def _pyg(self) -> None:
        self.torch = pytest.importorskip("torch")
        self.data = pytest.importorskip("torch_geometric.data")

    def graph(self) -> Any:
        index = self.torch.tensor([[0, 1], [1, 2]])
        return self.data.Data(x=self.torch.ones(3, 2), edge_index=index)

    def test_a_saved_graph(self, tmp_path: Path) -> None:
        self.torch.save(self.graph(), tmp_path / "a.pt")
        source = open_source(str(tmp_path / "a.pt"), 0)
        assert (source.name, source.num_nodes) == ("a", 3)

    def test_a_saved_typed_graph(self, tmp_path: Path) -> None:
        given = self.data.HeteroData()
        given["a"].x = self.torch.ones(3, 2)
        given["a", "to", "a"].edge_index = self.torch.tensor([[0], [1]])
        self.torch.save(given, tmp_path / "a.pt")
        assert open_source(str(tmp_path / "a.pt"), 0).edges[0].edge_type == ("a", "to", "a")

    def test_what_a_dataset_processed(self, tmp_path: Path) -> None:
        saved = (self.graph().to_dict(), None, self.data.Data)
        self.torch.save(saved, tmp_path / "a.pt")
        assert open_source(str(tmp_path / "a.pt"), 0).num_nodes == 3

    def test_several_graphs_are_refused(self, tmp_path: Path) -> None:
        saved = (self.graph().to_dict(), {"x": self.torch.tensor([0, 1])}, self.data.Data)
        self.torch.save(saved, tmp_path / "a.pt")
        with pytest.raises(SpecError, match="several graphs"):
            open_source(str(tmp_path / "a.pt"), 0)

    def test_files_that_run_code_are_refused(self, tmp_path: Path) -> None:
        self.torch.save({"path": Path("x")}, tmp_path / "a.pt")
        with pytest.raises(SpecError, match="without executing code"):
            open_source(str(tmp_path / "a.pt"), 0)

    @pytest.mark.parametrize(
        ("saved", "said"),
        [
            ([1, 2], r"a.pt contains a list, not a graph: give a file with a PyG Data"),
            (
                {"lin.weight": 1, "lin.bias": 2, "out.weight": 3, "out.bias": 4},
                r"a dict of lin.weight, lin.bias, out.weight, ..., not a graph: give a file",
            ),
            ({"x": 1, "edge_index": 2}, r"a dict of x, edge_index, .*: save `torch_geometric"),
        ],
    )
    def test_other_objects_are_refused(self, saved: object, said: str, tmp_path: Path) -> None:
        self.torch.save(saved, tmp_path / "a.pt")
        with pytest.raises(SpecError, match=said):
            open_source(str(tmp_path / "a.pt"), 0)
