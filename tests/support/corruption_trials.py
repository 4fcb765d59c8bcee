"""Damage one file of a partitioned graph, and see what whoever uses it makes of that."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.api.documents.load import load_plan, save_plan
from headrace.api.profile import load_trace, save_trace
from headrace.api.simulate import simulate
from headrace.core.errors import HeadraceError, SpecError
from headrace.graph.format.checksums import Verification, VerifiedFiles, files_of
from headrace.graph.format.manifest import MANIFEST, load_manifest
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.store.embedding_service import Embeddings
from headrace.graph.store.embedding_table import EmbeddingSpec
from headrace.graph.store.shard import open_shard
from headrace.graph.store.write_ahead_log import Change, WriteAheadLog
from headrace.planner.planner import make_plan
from headrace.rpc.framing import Fields, Message
from headrace.runtime.run_dir.run_config import RunSettings
from headrace.training.checkpoint_files import Position, read_sidecar
from headrace.training.checkpoint_files import save as save_checkpoint
from tests.support.wrong_requests import SAMPLE
from tests.unit.graph.small_graphs import homogeneous, with_features, write
from tests.unit.planner.small import CLUSTER, JOB, PROBLEM, PROFILE

FINE = ("refused", "harmless")
"""What may become of a trial."""

OUTCOMES = (*FINE, "silent", "crash", "traceback")

SCRIPT = """
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE
import headrace

torch.manual_seed(0)
torch.set_num_threads(1)
graph = headrace.open_graph("parts")
loader = headrace.NeighborLoader(graph, [5, 5], input_nodes="train", batch_size=64, shuffle=True)
model = GraphSAGE(5, 8, num_layers=2, out_channels=7)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
total = 0.0
for epoch in range(2):
    for batch in loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = cross_entropy(out, batch.y[: batch.batch_size].clamp(0, 6))
        loss.backward()
        optimizer.step()
        total += float(loss) + float(batch.n_id.sum()) + float(batch.edge_weight.sum())
print(f"total {total:.6f}")
"""


@dataclass(frozen=True)
class Damage:
    """What is done to a file.

    Attributes:
        name: Of the file.
        kind: One of `KINDS`.
        at: Byte, or length.
    """

    name: str
    kind: str
    at: int


def _flip(data: bytearray, at: int, rng: random.Random) -> bytes:
    data[at] ^= 1 << rng.randrange(8)
    return bytes(data)


def _exponent(data: bytearray, at: int, rng: random.Random) -> bytes:
    for i in range(at - at % 4 + 3, len(data), 200):
        data[i] ^= 0x40
    return bytes(data)


def _noise(data: bytearray, at: int, rng: random.Random) -> bytes:
    data[at : at + 16] = rng.randbytes(len(data[at : at + 16]))
    return bytes(data)


KINDS: dict[str, Callable[[bytearray, int, random.Random], bytes]] = {
    "flip": _flip,
    "exponent": _exponent,
    "noise": _noise,
    "zeros": lambda data, at, rng: bytes(data[:at]) + bytes(len(data) - at),
    "all zeros": lambda data, at, rng: bytes(len(data)),
    "cut": lambda data, at, rng: bytes(data[:at]),
    "longer": lambda data, at, rng: bytes(data) + rng.randbytes(8),
    "swapped": lambda data, at, rng: bytes(data[at:]) + bytes(data[:at]),
}


def make_graph(folder: Path) -> None:
    """A graph with every kind of file, in two parts; rows of features have different lengths."""
    rng = np.random.default_rng(0)
    features = np.where(rng.random((400, 5)) < 0.3, rng.random((400, 5)), 0).astype(np.float32)
    source = with_features(homogeneous(400, 4000), features)
    write(source, folder, num_parts=2, features="auto")


def damage(folder: Path, seed: int, parts: Sequence[int] | None = None) -> Damage:
    """Damage one file of some parts, or of all; files come in turn."""
    rng = random.Random(f"corruption {seed}")
    manifest = open_graph(folder).manifest
    files = manifest.files if parts is None else files_of(manifest, parts)
    names = [MANIFEST, *sorted(name for name, info in files.items() if info.bytes)]
    name = names[seed % len(names)]
    return Damage(name, *_damage_file(folder / name, rng))


def _damage_file(path: Path, rng: random.Random) -> tuple[str, int]:
    before = after = path.read_bytes()
    while after == before:
        kind, at = rng.choice(list(KINDS)), rng.randrange(len(before))
        after = KINDS[kind](bytearray(before), at, rng)
    path.write_bytes(after)
    return kind, at


def copy_of(intact: Path, to: Path) -> Path:
    """A graph to damage."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(intact, to)
    return to


def use_store(folder: Path, known: VerifiedFiles) -> str:
    """Ask a store for all that it has, while its files are verified; a sum of its answers.

    Raises:
        HeadraceError: Something is damaged.
    """
    from headrace.graph.store.service import StoreService
    from headrace.rpc.config import RpcLimits

    graph = open_graph(folder)
    shard = open_shard(graph, 0)
    store = StoreService(shard, RpcLimits(max_rows=10_000))
    verification = Verification(folder, files_of(graph.manifest, [0]), known=known)
    verification.start()
    ids = np.arange(*graph.offsets("node")[:2])
    graph.to_new("node", np.arange(graph.num_nodes_of("node")))
    said: list[Any] = [graph.part(0).split("node", split).tolist() for split in ("train", "val")]
    requests: list[Fields] = [dict(SAMPLE, weight=weight) for weight in (None, "edge_weight")]
    requests += [
        {"op": "gather", "of": "node", "column": name, "has_dims": False} for name in ("x", "y")
    ]
    for fields in requests:
        # Raises if it is refused, unlike what serves strangers.
        reply = store.answer(Message(1, fields, (ids,)))
        said.append((str(reply.fields), [array.tobytes().hex() for array in reply.arrays]))
    verification.wait(None)
    verification.check()
    return json.dumps(said)


def try_store(intact: Path, scratch: Path, seed: int, expected: str) -> dict[str, Any]:
    """Damage a store's file in a process of its own, which may crash; what became of it."""
    folder = copy_of(intact, scratch / f"store-{seed}")
    done = damage(folder, seed, parts=[0])
    known = VerifiedFiles(scratch / f"known-{seed}")
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        with os.fdopen(writer, "w") as out:
            out.write(json.dumps(_outcome(lambda: use_store(folder, known), expected)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        text = answers.read()
    _, status = os.waitpid(pid, 0)
    shutil.rmtree(folder)
    crashed = {"outcome": "crash", "said": f"signal {os.WTERMSIG(status)}"}
    found = json.loads(text) if text else crashed
    return {"seed": seed, "where": "store", **vars(done), **found}


def _outcome(use: Callable[[], str], expected: str) -> dict[str, str]:
    try:
        is_same = use() == expected
    except HeadraceError as error:
        return {"outcome": "refused", "said": str(error)}
    except BaseException:
        return {"outcome": "traceback", "said": traceback.format_exc()[-500:]}
    return {"outcome": "harmless" if is_same else "silent", "said": ""}


def run_local(folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """Train a little with stores and a sampler, as processes of this machine."""
    script = folder.parent / "corruption_script.py"
    script.write_text(SCRIPT)
    words = ["run", "--local", "--graph", str(folder), str(script)]
    return subprocess.run(
        [sys.executable, "-m", "headrace", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": str(home)},
        cwd=folder.parent,
    )


def total_of(done: subprocess.CompletedProcess[str]) -> str:
    """What the script printed."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("total ")]
    return lines[-1] if lines else ""


def try_local(intact: Path, scratch: Path, seed: int, expected: str) -> dict[str, Any]:
    """Damage a file of a graph that a run on this machine trains on; what became of it."""
    folder = copy_of(intact, scratch / f"local-{seed}")
    change = damage(folder, seed)
    done = run_local(folder, scratch)
    shutil.rmtree(folder)
    said = done.stdout + done.stderr
    if "Traceback" in said:
        outcome = "traceback"
    elif done.returncode < 0 or "SIGSEGV" in said or "SIGBUS" in said or done.returncode > 128:
        outcome = "crash"
    elif done.returncode:
        outcome = "refused"
    else:
        outcome = "harmless" if total_of(done) == expected else "silent"
    short = "" if outcome == "harmless" else said[-500:]
    if outcome == "traceback":
        short = said[said.index("Traceback") :][:3000]
    return {"seed": seed, "where": "local", **vars(change), "outcome": outcome, "said": short}


class Formats:
    """Files of all other formats, one of each.

    Args:
        folder: For them.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._readers: dict[str, Callable[[], Any]] = {
            "manifest.json": self._manifest(),
            "plan.json": self._plan(),
            "trace.npz": self._trace(),
            "run.json": self._run_file(),
            "checkpoint-00000007.json": self._sidecar(),
            "journal1": self._journal(),
            "0/embedding.json": self._embedding(),
        }
        self._intact = {name: (folder / name).read_bytes() for name in self._readers}
        self._expected = {name: read() for name, read in self._readers.items()}

    def try_one(self, seed: int) -> dict[str, Any]:
        """Damage one of them, and read it; what became of it."""
        rng = random.Random(f"format {seed}")
        name = list(self._readers)[seed % len(self._readers)]
        kind, at = _damage_file(self._folder / name, rng)
        found = _outcome(lambda: str(self._readers[name]()), str(self._expected[name]))
        (self._folder / name).write_bytes(self._intact[name])
        return {"seed": seed, "where": "formats", "name": name, "kind": kind, "at": at, **found}

    def _manifest(self) -> Callable[[], Any]:
        make_graph(self._folder / "graph")
        shutil.copy(self._folder / "graph" / MANIFEST, self._folder / MANIFEST)
        return lambda: load_manifest(self._folder)

    def _plan(self) -> Callable[[], Any]:
        path = self._folder / "plan.json"
        save_plan(make_plan(PROBLEM, method="colocate", policy="maxmin"), path)
        return lambda: load_plan(path)

    def _trace(self) -> Callable[[], Any]:
        path = self._folder / "trace.npz"
        save_trace(simulate(CLUSTER, JOB, PROFILE).trace(), path)
        return lambda: vars(load_trace(path))

    def _run_file(self) -> Callable[[], Any]:
        made = RunSettings(
            graph=self._folder / "parts", script=self._folder / "x.py", config={"a": 1}
        )
        made.save(self._folder)
        return lambda: RunSettings.load(self._folder)

    def _sidecar(self) -> Callable[[], Any]:
        position = Position(iteration=7, epoch=1, batch=3, plan="0123", lanes="4567")
        path = save_checkpoint(self._folder, position, {"a": 1}).sidecar_path
        return lambda: _or_refused(read_sidecar(path))

    def _journal(self) -> Callable[[], Any]:
        change = Change(3, 4, np.arange(5), [np.full((5, 2), 0.5, np.float32)])
        WriteAheadLog(self._folder).append(change)
        return lambda: _or_refused(WriteAheadLog(self._folder).last(2, 1))

    def _embedding(self) -> Callable[[], Any]:
        shard = open_shard(open_graph(self._folder / "graph"), 0)
        made = Embeddings(shard, self._folder)
        made.make("node", "learnt", EmbeddingSpec(dim=2, optimizer="sgd"))
        return lambda: (
            Embeddings(shard, self._folder).optimizer_shard("node", "learnt").embedding.spec
        )


def _or_refused(found: Any) -> Any:
    """Some readers say by nothing that there is nothing good."""
    if found is None:
        raise SpecError("it is damaged", "take another one")
    return found
