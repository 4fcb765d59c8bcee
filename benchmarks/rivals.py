"""Baselines of the data path, each in its own process, possibly of another Python.

    python benchmarks/rivals.py dgl FOLDER
    python benchmarks/rivals.py torch-sparse FOLDER
    python benchmarks/rivals.py inference FOLDER
    python benchmarks/rivals.py socket FOLDER

Nothing of headrace is imported. The caller writes the number of repetitions, one per line, and
reads the seconds. `FOLDER` has the graph as .npy files, and `settings.json`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Work = Callable[[int], dict[str, float]]


def batches(train: np.ndarray, size: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(train)
        yield from (order[i : i + size] for i in range(0, len(order) - size + 1, size))


def dgl_sampler(folder: Path, settings: dict[str, Any]) -> Work:
    """DGL's neighbour sampler.

    With 64-bit ids: with 32-bit ids version 1.1.3 finds the wrong neighbours (1,646 nodes behind
    13,013 edges of 1,024 seeds, where there are 13,674).
    """
    import dgl  # type: ignore[import-not-found]
    import torch

    torch.set_num_threads(1)
    indptr, indices, train = (
        torch.from_numpy(np.load(folder / f"{name}.npy").astype(np.int64))
        for name in ("indptr", "indices", "train")
    )
    graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int64))))
    # DGL counts layers from the input, PyG hops from the seeds.
    sampler = dgl.dataloading.NeighborSampler(settings["fanouts"][::-1])
    source = batches(train.numpy(), settings["batch_size"])

    def work(num: int) -> dict[str, float]:
        edges = 0
        begin = time.perf_counter()
        for _ in range(num):
            _, _, blocks = sampler.sample_blocks(graph, torch.from_numpy(next(source)))
            edges += sum(block.num_edges() for block in blocks)
        return {"seconds": time.perf_counter() - begin, "edges": edges}

    return work


def sparse_loop(folder: Path, settings: dict[str, Any]) -> Work:
    """A training loop over PyG's own NeighborLoader."""
    import torch
    import torch_sparse  # type: ignore[import-not-found]  # noqa: F401 - PyG samples with it
    from torch.nn.functional import cross_entropy
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import GraphSAGE

    torch.set_num_threads(1)
    arrays = {n: np.load(folder / f"{n}.npy") for n in ("indptr", "indices", "train", "x", "y")}
    col = np.repeat(np.arange(len(arrays["indptr"]) - 1), np.diff(arrays["indptr"]))
    edge_index = torch.from_numpy(np.stack([arrays["indices"].astype(np.int64), col]))
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    loader = NeighborLoader(
        Data(x=x, y=y, edge_index=edge_index),
        settings["fanouts"],
        torch.from_numpy(arrays["train"]),
        batch_size=settings["batch_size"],
        shuffle=True,
        drop_last=True,
        is_sorted=True,
    )
    model = GraphSAGE(x.shape[1], settings["width"], len(settings["fanouts"]), int(y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters())

    def forever() -> Iterator[Any]:
        while True:
            yield from loader

    source = forever()

    def work(num: int) -> dict[str, float]:
        begin = time.perf_counter()
        for _ in range(num):
            batch = next(source)
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
        return {"seconds": time.perf_counter() - begin}

    return work


def full_inference(folder: Path, settings: dict[str, Any]) -> Work:
    """PyG's layer-wise inference in memory; asked for with a batch size instead of a number."""
    import resource

    import torch
    import torch_sparse  # noqa: F401 - PyG samples with it
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import GraphSAGE

    torch.set_num_threads(settings["threads"])
    indptr = np.load(folder / "indptr.npy")
    col = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    src = np.load(folder / "indices.npy").astype(np.int64)
    x = torch.from_numpy(np.load(folder / "x.npy"))
    data = Data(x=x, edge_index=torch.from_numpy(np.stack([src, col])))
    model = GraphSAGE(*settings["model"]).eval()
    model.load_state_dict(torch.load(folder / "model.pt"))

    def work(batch_size: int) -> dict[str, float]:
        loader = NeighborLoader(data, [-1], batch_size=batch_size, is_sorted=True)
        begin = time.perf_counter()
        out = model.inference(loader)
        seconds = time.perf_counter() - begin
        np.save(folder / "out.npy", out.numpy())
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"seconds": seconds, "peak_bytes": peak_bytes}

    return work


def serve_rows(folder: Path, settings: dict[str, Any]) -> None:
    """A bare socket: ids come in, rows go out, one client."""
    rows = np.memmap(settings["file"], np.float32, mode="r", shape=tuple(settings["shape"])).view(
        np.ndarray
    )
    num, width = settings["num_rows"], settings["shape"][1]
    ids, out = np.empty(num, np.int64), np.empty((num, width), np.float32)
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        plain, _ = server.accept()
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with wrapped(plain, folder, settings, server_side=True) as client:
            while receive(client, ids):
                np.take(rows, ids, axis=0, out=out, mode="clip")
                client.sendall(out.data.cast("B"))


def wrapped(plain: Any, folder: Path, settings: dict[str, Any], server_side: bool) -> Any:
    """The socket, encrypted if the settings say so; both sides show a certificate."""
    if not settings["tls"]:
        return plain
    import ssl

    kind = ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(kind)
    side = "server" if server_side else "client"
    context.load_cert_chain(folder / f"{side}.pem", folder / f"{side}-key.pem")
    context.load_verify_locations(folder / "authority.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context.wrap_socket(
        plain, server_side=server_side, server_hostname=None if server_side else "127.0.0.1"
    )


def receive(end: Any, array: np.ndarray) -> bool:
    """Fill an array; whether the other side was still there."""
    memory = array.data.cast("B")
    while len(memory):
        num = end.recv_into(memory)
        if num == 0:
            return False
        memory = memory[num:]
    return True


def main() -> int:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    if kind != "inference":
        os.environ["OMP_NUM_THREADS"] = "1"  # read when DGL and torch are imported
    settings = json.loads((folder / "settings.json").read_text())
    if kind == "socket":
        serve_rows(folder, settings)
        return 0
    kinds = {"dgl": dgl_sampler, "torch-sparse": sparse_loop, "inference": full_inference}
    work = kinds[kind](folder, settings)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(work(int(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
