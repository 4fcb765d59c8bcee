"""Training speed, ours and of plain loops: what `data_path.py` compares end to end."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.apart import staying

ROOT = Path(__file__).resolve().parents[1]
GRAPH = "generated:nodes=1e6,edges=25e6,features=128"
QUICK_GRAPH = "generated:nodes=4e5,edges=1e7,features=128"
SMALL_GRAPH = "generated:nodes=1e5,edges=2e6,features=128"


@dataclass(frozen=True)
class Model:
    """A model and its batches, how long to measure it, and whether beside more than one rival."""

    width: int
    fanouts: tuple[int, ...]
    batch_size: int
    num_rounds: int
    num_batches: int
    num_warm: int
    is_explained: bool = False


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    light: Model
    heavy: Model
    kernel_rounds: int
    kernel_batches: int
    gather_rounds: int
    gather_requests: int
    early_batches: int
    late_batches: int
    memory_batch_size: int
    graph: str
    cache_graph: str
    cache_parts: int
    cache_batch_size: int
    cache_epochs: int
    cache_policies: tuple[str, ...]


# What the samplers made ahead while the other side was measured must be used up first.
FULL = Effort(
    light=Model(64, (15, 10), 1024, 7, 20, 10, is_explained=True),
    heavy=Model(256, (15, 10, 5), 1024, 3, 3, 1),
    kernel_rounds=9,
    kernel_batches=10,
    gather_rounds=15,
    gather_requests=60,
    early_batches=200,
    late_batches=2000,
    memory_batch_size=256,
    graph=GRAPH,
    cache_graph=GRAPH,
    cache_parts=4,
    cache_batch_size=1024,
    cache_epochs=4,
    cache_policies=("frequency", "degree"),
)
QUICK = Effort(
    light=Model(64, (15, 10), 1024, 3, 3, 2),
    heavy=Model(256, (15, 10, 5), 32, 3, 1, 1),
    kernel_rounds=3,
    kernel_batches=3,
    gather_rounds=3,
    gather_requests=12,
    early_batches=24,
    late_batches=72,
    memory_batch_size=16,
    graph=QUICK_GRAPH,
    cache_graph=SMALL_GRAPH,
    cache_parts=2,
    cache_batch_size=128,
    cache_epochs=3,
    cache_policies=("frequency",),
)


def configs(
    folder: Path, seeds: np.ndarray, model: Model, num_samplers: int, **more: Any
) -> tuple[list[Any], list[np.ndarray]]:
    """Samplers of one trainer, and their seeds."""
    from headrace.graph.sampler_worker.config import SamplerConfig
    from headrace.graph.sampler_worker.schedule import batches_per_epoch, sampler_batch_size

    own = [seeds[s::num_samplers] for s in range(num_samplers)]
    num_batches = batches_per_epoch([len(part) for part in own], model.batch_size, True)
    settings: dict[str, Any] = {
        "graph": folder,
        "node_type": "node",
        "seeds": "given",
        "batches_per_epoch": num_batches,
        "fanouts": [[("node", "to", "node"), model.fanouts]],
        **more,
    }
    made = [
        SamplerConfig(
            task=f"sampler {s}",
            seeds_per_iteration=sampler_batch_size(model.batch_size, num_samplers, s),
            **settings,
        )
        for s in range(num_samplers)
    ]
    return made, own


class Trainer:
    """Trains GraphSAGE with one thread; counts seconds for a number of batches."""

    def __init__(self, model: Model) -> None:
        import torch
        from torch_geometric.nn import GraphSAGE

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._model = GraphSAGE(128, model.width, len(model.fanouts), 16)
        self._optimizer = torch.optim.Adam(self._model.parameters())

    def train(self, batches: Iterator[Any], num: int) -> float:
        from torch.nn.functional import cross_entropy

        begin = time.perf_counter()
        for _ in range(num):
            batch = next(batches)
            self._optimizer.zero_grad()
            out = self._model(batch.x, batch.edge_index)[: batch.batch_size]
            cross_entropy(out, batch.y[: batch.batch_size]).backward()
            self._optimizer.step()
            del batch, out
        return time.perf_counter() - begin


def forever(loader: Any) -> Iterator[Any]:
    while True:
        for batch in loader:
            yield batch
            del batch


def train_seeds(folder: Path) -> np.ndarray:
    """Original ids of all training nodes."""
    from headrace.graph.format.partitioned_graph import open_graph
    from headrace.graph.loader.graph_view import PartitionedGraphView

    return PartitionedGraphView(open_graph(folder)).split("node", "train")


def plain_loader(folder: Path, model: Model) -> Any:
    """PyG's loader over a graph in memory, with our kernel as its sampler."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.loader import NodeLoader

    from headrace.graph.format.partitioned_graph import open_graph
    from headrace.graph.loader.graph_view import PartitionedGraphView
    from headrace.graph.loader.pyg_sampler import KeyedSampler

    graph = open_graph(folder)
    (x, y) = (torch.from_numpy(np.array(graph.part(0).column("node", n))) for n in "xy")
    # One part keeps its nodes in order. PyG wants an edge_index, but takes the sampler's edges.
    data = Data(x=x, y=y, edge_index=torch.empty(2, 0, dtype=torch.int64))
    sampler = KeyedSampler(PartitionedGraphView(graph), list(model.fanouts))
    seeds = torch.from_numpy(train_seeds(folder))
    return NodeLoader(
        data, sampler, seeds, batch_size=model.batch_size, shuffle=True, drop_last=True
    )


def own_loader(folder: Path, model: Model) -> Any:
    """Our loader over the same parts, in the trainer's process."""
    from headrace.graph.loader.neighbor_loader import NeighborLoader

    return NeighborLoader(
        folder, list(model.fanouts), "train",
        batch_size=model.batch_size, shuffle=True, drop_last=True,
    )  # fmt: skip


def plain_loops(folder: Path, models: Sequence[Model]) -> Callable[[int, int], float]:
    """Loops of one process, as PyG has it: how long a model takes for a number of batches."""
    trainers = [Trainer(model) for model in models]
    loops = [forever(plain_loader(folder, model)) for model in models]
    return lambda which, num: trainers[which].train(loops[which], num)


def end_to_ends(
    folder: Path, models: dict[str, Model], num_samplers: int, sparse: Any
) -> dict[str, Any]:
    """All models; `sparse` is the command of the first one's rival."""
    found = {}
    with ExitStack() as stack:
        rival = stack.enter_context(asking(sparse)) if sparse else None
        plain = stack.enter_context(staying(plain_loops, folder, list(models.values())))
        for which, (name, model) in enumerate(models.items()):
            own = (partial(plain, which), rival if which == 0 else None)
            began = time.perf_counter()
            found[name] = end_to_end(folder, model, num_samplers, *own)
            found[name]["seconds"] = round(time.perf_counter() - began, 1)
    return found


def end_to_end(
    folder: Path,
    model: Model,
    num_samplers: int,
    plain: Callable[[int], float],
    rival: Callable[[int], dict[str, float]] | None,
) -> dict[str, Any]:
    """Samples/s of a trainer by the source of its batches.

    The trainer keeps its memory, as in a run; the plain loop is a process that knows nothing of
    headrace's trainers. What that alone gives, and what a step takes, is told if asked for.
    """
    from headrace.linux.malloc import reuse_memory
    from tests.support.sampler_processes import start_prefetcher

    reuse_memory()
    seeds = train_seeds(folder)
    names = ("feed", "plain", "plain_reusing", "own_loader", "step", "sparse")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    idle: list[float] = []
    with ExitStack() as stack:
        feed = stack.enter_context(
            start_prefetcher(*configs(folder, seeds, model, num_samplers), time.perf_counter)
        )
        fed, trainer = forever(feed), Trainer(model)
        loops: dict[str, Callable[[int], float]] = {"plain": plain}
        if model.is_explained:
            reusing = forever(plain_loader(folder, model))
            loops["plain_reusing"] = partial(trainer.train, reusing)
            loops["own_loader"] = partial(trainer.train, forever(own_loader(folder, model)))
            loops["step"] = partial(trainer.train, forever([next(reusing) for _ in range(3)]))
        for loop in loops.values():
            loop(2)
        if rival:
            rival(1)
        for _ in range(model.num_rounds):
            for name, loop in loops.items():
                seconds[name].append(loop(model.num_batches) / model.num_batches)
            if rival:
                num = max(model.num_batches // 8, 2)
                seconds["sparse"].append(rival(num)["seconds"] / num)
            trainer.train(fed, model.num_warm)
            feed.start_measuring()
            seconds["feed"].append(trainer.train(fed, model.num_batches) / model.num_batches)
            idle.append(feed.report().idle_share)
        figures = feed.report().figures
    ratios = {name: over(taken, seconds["feed"]) for name, taken in seconds.items()}
    samples = {
        name: round(model.batch_size / statistics.median(taken), 1)
        for name, taken in seconds.items()
        if taken
    }
    return {
        "samples_per_s": samples,
        "ratio": ratios["plain"],
        "over_plain_reusing": ratios["plain_reusing"],
        "over_own_loader": ratios["own_loader"],
        "over_torch_sparse": ratios["sparse"],
        "ceiling": over(seconds["plain"], seconds["step"]) if model.is_explained else None,
        "idle_share": round(statistics.median(idle), 4),
        "last_round_figures": {name: round(value, 4) for name, value in figures.items()},
        "model": f"{len(model.fanouts)} x {model.width}",
        "fanouts": list(model.fanouts),
        "batch_size": model.batch_size,
        "rounds": model.num_rounds,
        "batches_per_round": model.num_batches,
    }


def over(theirs: list[float], ours: list[float]) -> float | None:
    """How much less time we need: the median of all rounds."""
    if not theirs:
        return None
    return round(statistics.median(a / b for a, b in zip(theirs, ours, strict=True)), 3)


@contextmanager
def asking(command: list[str]) -> Iterator[Callable[[int], dict[str, float]]]:
    """A rival's process, and how to ask it to do its work so many times; first waits for it."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None

    def answer() -> dict[str, float]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(command)} has ended")
        found: dict[str, float] = json.loads(line)
        return found

    waits = True

    def ask(num: int) -> dict[str, float]:
        nonlocal waits
        if waits:
            waits = False
            answer()
        assert process.stdin is not None
        process.stdin.write(f"{num}\n")
        process.stdin.flush()
        return answer()

    try:
        yield ask
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def hand_over(folder: Path, to: Path, model: Model, with_rows: bool) -> None:
    """Write a graph as files that need nothing of headrace."""
    from headrace.graph.format.partitioned_graph import open_graph

    graph = open_graph(folder)
    part, edge_type = graph.part(0), ("node", "to", "node")
    to.mkdir()
    np.save(to / "indptr.npy", part.indptr(edge_type))
    np.save(to / "indices.npy", part.indices(edge_type))
    np.save(to / "train.npy", train_seeds(folder))
    if with_rows:
        for name in "xy":
            np.save(to / f"{name}.npy", part.column("node", name))
    settings = {
        "fanouts": model.fanouts,
        "batch_size": model.batch_size,
        "width": model.width,
    }
    (to / "settings.json").write_text(json.dumps(settings))


def together(calls: list[tuple[str, Callable[..., Any], tuple[Any, ...]]]) -> dict[str, Any]:
    """Call functions one after the other; how long each took goes with what it found."""
    found = {}
    for name, function, arguments in calls:
        began = time.perf_counter()
        found[name] = function(*arguments)
        found[name]["seconds"] = round(time.perf_counter() - began, 1)
    return found
