"""Opens the graph source that a command-line argument describes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from headrace.core.errors import MissingExtraError, SpecError
from headrace.graph.schema import GraphSource
from headrace.graph.sources.gds import GRAPHS, from_gds, is_gds
from headrace.graph.sources.ogb import from_ogb, is_ogb
from headrace.graph.sources.planetoid import from_npz
from headrace.graph.sources.pyg import from_pyg
from headrace.graph.sources.tables import from_tables
from headrace.graph.sources.triples import from_triples

UNDERSTOOD = (
    "a .pt file with a PyG Data or HeteroData, a graph.yaml of Parquet or Arrow tables, a folder "
    "of OGB, an .npz file, a .tar.gz of triples, or generated:nodes=1e6,edges=25e6,features=128"
)
_GENERATED = "generated:"
_ARCHIVES = (".tar.gz", ".tgz", ".tar")


def open_source(text: str, seed: int) -> GraphSource:
    """Open the source of `headrace partition`.

    Args:
        text: A path or the description of a generated graph.
        seed: Random seed of generated graphs, and of splits and features that a file lacks.

    Raises:
        SpecError: The source does not exist or has an unknown format.
        MissingExtraError: A required package is not installed.
    """
    if text.startswith(_GENERATED):
        from headrace.graph.sources import generated

        return generated.parse(text if "seed=" in text else f"{text},seed={seed}")
    path = Path(text).expanduser()
    if path.is_dir():
        return _open_folder(path, seed)
    if not path.exists():
        if is_gds(path.parent) and path.name in GRAPHS:
            return from_gds(path.parent, path.name, seed)
        raise SpecError(f"{text} does not exist", f"give {UNDERSTOOD}")
    return _open_file(path, seed)


def _open_folder(folder: Path, seed: int) -> GraphSource:
    if is_ogb(folder):
        return from_ogb(folder)
    if (folder / "graph.yaml").exists():
        return from_tables(folder / "graph.yaml")
    if is_gds(folder):
        names = " or ".join(str(folder / name) for name in GRAPHS)
        raise SpecError(f"{folder} has {len(GRAPHS)} graphs", f"choose one: {names}")
    files = [path for path in sorted(folder.iterdir()) if _is_graph_file(path)]
    if len(files) == 1:
        return _open_file(files[0], seed)
    if files:
        names = ", ".join(str(path) for path in files)
        raise SpecError(f"{folder} has {len(files)} graphs", f"choose one: {names}")
    raise SpecError(f"{folder} has no graph in a supported format", f"give {UNDERSTOOD}")


def _is_graph_file(path: Path) -> bool:
    return path.suffix in (".npz", ".pt") or path.name.endswith(_ARCHIVES)


def _open_file(path: Path, seed: int) -> GraphSource:
    if path.suffix in (".yaml", ".yml"):
        return from_tables(path)
    if path.suffix == ".npz":
        return from_npz(path, seed)
    if path.suffix == ".pt":
        return from_pyg(_load(path), path.stem)
    if path.name.endswith(_ARCHIVES):
        return from_triples(path)
    raise SpecError(f"{path} is not a supported file type", f"give {UNDERSTOOD}")


def _load(path: Path) -> Any:
    """Load a saved PyG object without executing code from the file."""
    try:
        import torch
        from torch_geometric.data import Data, HeteroData, storage
        from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    except ImportError:
        raise MissingExtraError(
            "torch_geometric is not installed", "pip install 'headrace[train]'"
        ) from None
    stores = (storage.BaseStorage, storage.NodeStorage, storage.EdgeStorage, storage.GlobalStorage)
    known = [Data, HeteroData, DataEdgeAttr, DataTensorAttr, *stores]
    try:
        with torch.serialization.safe_globals(known):
            # Memory-mapped, so that a large graph is not held twice.
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise SpecError(
            f"{path} cannot be loaded without executing code from it ({reason})",
            "save a plain Data or HeteroData, or load it and call headrace.partition",
        ) from None
    if isinstance(loaded, tuple) and len(loaded) == 3 and isinstance(loaded[0], dict):
        # The format of PyG's InMemoryDataset.
        fields, slices, kind = loaded
        if slices is not None:
            raise SpecError(f"{path} has several graphs", "save one of them")
        if kind not in (Data, HeteroData):
            raise SpecError(f"{path} contains a {kind}", "save a Data or HeteroData")
        return kind.from_dict(fields)
    if not isinstance(loaded, Data | HeteroData):
        raise SpecError(f"{path} contains a {_described(loaded)}, not a graph", _remedy(loaded))
    return loaded


def _described(loaded: object) -> str:
    keys = [str(key) for key in loaded] if isinstance(loaded, dict) else []
    names = f" of {', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''}" if keys else ""
    return f"{type(loaded).__name__}{names}"


def _remedy(loaded: object) -> str:
    if isinstance(loaded, dict) and "edge_index" in loaded:
        return "save `torch_geometric.data.Data(**it)` instead"
    return "give a file with a PyG Data or HeteroData, written with `torch.save(data, FILE)`"
