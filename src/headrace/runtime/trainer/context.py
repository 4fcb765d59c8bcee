"""The context that is passed to a script's `train_func`: graph, loaders, model and other trainers.

The same function runs in a single process or in a run. A single process is the only trainer and has
the whole graph and all seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, SupportsFloat, Unpack

import torch
from torch import nn

from headrace.core.errors import SpecError
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.graph.schema import SPLITS
from headrace.runtime.protocol.finite_check import hook_model, watch_gradients
from headrace.runtime.protocol.run_context import RunContext, current_run
from headrace.runtime.trainer.checkpointer import Checkpoints
from headrace.runtime.trainer.loaders import NeighborLoader
from headrace.runtime.trainer.node_embeddings import NodeEmbeddings
from headrace.runtime.trainer.parameter_servers import ServedModels
from headrace.runtime.trainer.report import report
from headrace.runtime.trainer.seed_shards import check_assignment, compare_batch_size
from headrace.runtime.trainer.step_trace import steps_of
from headrace.training.best_model import BestKeeper
from headrace.training.checkpoint_files import as_plain
from headrace.training.ddp import (
    STEP,
    ExchangeWatch,
    from_first_trainer,
    join_group,
    leave_group,
    new_group,
    plain,
    share_gradients,
    sum_over_trainers,
)
from headrace.training.denormals import denormals_flushed
from headrace.training.inference.layerwise import Inference, infer
from headrace.training.node_embedding import NodeEmbedding

if TYPE_CHECKING:
    from headrace.training.full_graph.full_graph import FullGraph
    from headrace.training.full_graph.swap import FullGraphOptions

TrainFunction = Callable[["TrainContext"], object]


class TrainContext:
    """One trainer of a run.

    Args:
        run: The run; none to train in a single process.
        graph: Folder of the graph, without a run.
        config: Settings of the script, overridden by those of the run.
        output: Output folder, if the run has none.

    Attributes:
        config: Settings of the script.
        rank: Rank of the trainer.
        world_size: Number of trainers.
        device: Device to compute on.
        output: Output folder.
    """

    num_made: ClassVar[int] = 0
    """Number of contexts in this process: 0 if the script has not called `train`."""

    def __init__(
        self,
        run: RunContext | None = None,
        graph: str | os.PathLike[str] | None = None,
        config: Mapping[str, Any] | None = None,
        output: str | os.PathLike[str] = ".",
    ) -> None:
        TrainContext.num_made += 1
        if run is not None:
            watch_gradients(run)
        self.config: dict[str, Any] = {**(config or {}), **(run.config if run else {})}
        self.rank = run.rank if run else 0
        self.world_size = run.world_size if run else 1
        self.device = _device()
        self.output = run.output if run and run.output else Path(output)
        self._run = run
        self._folder = run.parts if run and run.parts else graph
        self._graph: PartitionedGraph | None = None
        self._loaders: dict[str, NeighborLoader] = {}
        self._served = ServedModels(run) if run and run.servers else None
        self._keeper = BestKeeper(self.output if self.rank == 0 else None)
        self._checkpoints = Checkpoints(run, self.device, self._keeper)
        self._embeddings = NodeEmbeddings(run, self.device)

    @property
    def graph(self) -> PartitionedGraph:
        """The graph of the run.

        Raises:
            SpecError: The run has no graph.
        """
        if self._graph is None:
            if self._folder is None:
                raise SpecError(
                    "no graph is set",
                    "pass one: `headrace run --graph DIR`, or "
                    "`headrace.train(train_func, graph=DIR)`",
                )
            self._graph = open_graph(self._folder)
        return self._graph

    def loader(self, split: str, num_neighbors: Any = None, **settings: Any) -> NeighborLoader:
        """Return the loader of this trainer's seeds of a split.

        Seeds of `train` are shuffled. A plan sets the seeds per batch; `batch_size` is used only
        without a plan, so the same script runs in both cases.

        Args:
            split: `train`, `val` or `test`.
            num_neighbors: As in PyG. A later call with only the split returns the same loader.
            **settings: Arguments of `NeighborLoader`, and `node_type` in a heterogeneous graph.

        Raises:
            SpecError: There is no such split, or the settings contradict the plan.
        """
        if split in self._loaders and num_neighbors is None and not settings:
            return self._loaders[split]
        if split not in SPLITS:
            raise SpecError(f"there is no split {split!r}", f"use one of {', '.join(SPLITS)}")
        if num_neighbors is None:
            raise SpecError(f"loader of {split} has no num_neighbors", "pass neighbours per hop")
        settings = {"shuffle": split == "train", **settings}
        node_type = settings.pop("node_type", None)
        nodes: Any = split
        run = self._run
        if run is not None and run.is_planned:
            check_assignment(self.graph, node_type)
            planned = run.batches_of(split).batch_size(run.trainer)
            if settings["shuffle"]:
                compare_batch_size(run, settings.get("batch_size"))
                settings["batch_size"] = planned
            else:
                settings.setdefault("batch_size", planned)
                nodes = torch.from_numpy(run.seeds_of(split))
        if node_type is not None:
            nodes = (node_type, nodes)
        loader = NeighborLoader(self.graph, num_neighbors, input_nodes=nodes, **settings)
        loader.keep_in(self._checkpoints)
        self._loaders[split] = loader
        return loader

    def full_graph(
        self, weight: float | None = None, **options: Unpack[FullGraphOptions]
    ) -> FullGraph:
        """Return this trainer's part of the graph, one batch per epoch; a collective call.

        Together, all trainers have all nodes and edges. Pass the result to `prepare`, too.

        Args:
            weight: Number of items whose mean this trainer's loss is; none for its training nodes.
            **options: `bins` and `parallelism` (by default those of the plan), `rounding`,
                `is_stale` and `matchings`; see `FullGraphOptions`.

        Raises:
            SpecError: There are fewer partitions than trainers, or one is on no trainer's machine.
        """
        # Most scripts sample.
        from headrace.runtime.trainer.full_graph import RunFullGraph

        self._join()
        group = new_group(self.world_size)
        data = RunFullGraph(self._run, self.graph, group, self.device, weight, **options)
        data.keep_in(self._checkpoints)
        return data

    def epochs(self, num: int | None = None) -> Iterator[int]:
        """Yield epoch numbers from 0; in a resumed run, the remaining ones.

        Checkpoints are written inside this loop: at the end of epochs, and every N steps when the
        loop over `loader("train")` requests its next batch.

        Args:
            num: Total number of epochs; none for no limit.
        """
        return self._checkpoints.epochs(num)

    def keep(self, **things: Any) -> None:
        """Add objects to checkpoints, besides the prepared model, its optimizer and the RNG state.

        The objects of rank 0 are saved and restored on all trainers.

        Args:
            **things: By name: objects with `state_dict` and `load_state_dict`, such as a scheduler;
                a `torch.Generator`; a dict or a list of tensors and plain values.

        Raises:
            SpecError: An object cannot be saved.
        """
        self._checkpoints.keep(things)

    def close(self) -> None:
        """Wait until the last checkpoint is written, and disconnect from the stores."""
        self._checkpoints.close()
        self._embeddings.close()

    def prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        gradients: str | None = None,
        full_graph: FullGraph | None = None,
        **settings: Any,
    ) -> Any:
        """Make a model train synchronously with all trainers.

        Args:
            model: The same on all trainers; parameters of rank 0 are used.
            optimizer: Optimizer of the model's parameters. The same object is returned; with
                parameter servers, the servers run its steps.
            gradients: `int8` to send gradients in 8 bits; what rounding loses is added to the next
                step's. A resumed run then differs from one that was not interrupted.
            full_graph: Result of `full_graph`, if the model trains on its batches: layers exchange
                rows of neighbours with other trainers.
            **settings: Arguments of torch's `DistributedDataParallel`, e.g.
                `find_unused_parameters`.

        Returns:
            The model to call, and the optimizer if one was passed.

        Raises:
            SpecError: With parameter servers: there is no optimizer, or it is not supported. With
                `full_graph`: a part of the model cannot work on parts of a graph.
        """
        if gradients not in (None, "int8"):
            raise SpecError(f"gradients cannot be sent as {gradients!r}", "use 'int8' or nothing")
        model = model.to(self.device)
        if full_graph is not None:
            full_graph.wrap(model)
        hook_model(self._run, model.parameters())
        self._checkpoints.add(model, optimizer)
        if optimizer is not None:
            optimizer.register_step_post_hook(lambda *_: self._embeddings.step())
        if self._served is not None:
            self._join()
            self._served.synchronise(model, optimizer, gradients == "int8")
        elif self.world_size > 1:
            self._join()
            steps = None if self._run is None else steps_of(self._run)
            if steps is not None and STEP.watch is None:
                STEP.watch = ExchangeWatch(steps.clock, steps.exchange)
            model = share_gradients(model, self.device, gradients == "int8", **settings)
        return model if optimizer is None else (model, optimizer)

    def embedding(
        self,
        name: str,
        dim: int,
        *,
        node_type: str | None = None,
        optimizer: str = "adam",
        lr: float = 0.01,
        seed: int = 0,
        init: float | None = None,
    ) -> NodeEmbedding:
        """Create learnable node embeddings in the stores; a collective call.

        Every step of a prepared optimizer also updates the embeddings.

        Args:
            name: Name of the embedding; also the node type, if that is not given.
            dim: Values per row.
            node_type: Type of the nodes; optional if the graph has one node type.
            optimizer: `sgd`, `adagrad` or `adam`, as torch's for sparse gradients.
            lr: Learning rate.
            seed: Seed of the initial values, which depend on it, the names and the node id.
            init: Initial values are uniform in [-init, init]; none for `1 / sqrt(dim)`.

        Returns:
            A module: `rows = embedding(batch.n_id)`.

        Raises:
            SpecError: There is no such node type, or a setting is invalid.
        """
        self._join()
        given = {"dim": dim, "optimizer": optimizer, "seed": seed, "bound": init}
        made, kept = self._embeddings.make(self.graph, name, node_type, lr, **given)
        self._checkpoints.add_unchecked({f"embedding {name}": kept})
        return made

    def clip_grad_norm(self, model: nn.Module, max_norm: float) -> float:
        """Clip the norm of a model's gradients; a collective call.

        Args:
            model: The result of `prepare`. With parameter servers, its optimizer's parameters
                count.
            max_norm: Largest norm of all gradients together.

        Returns:
            The norm before clipping.

        Raises:
            SpecError: With parameter servers: the model was not prepared.
        """
        if self._served is not None:
            return self._served.clip(plain(model), max_norm)
        return float(nn.utils.clip_grad_norm_(plain(model).parameters(), max_norm))

    def report(self, **figures: SupportsFloat | str) -> None:
        """Report metrics of rank 0; see `headrace.report`."""
        if self.rank == 0:
            report(**figures)

    def sum(self, value: SupportsFloat) -> float:
        """Sum over all trainers; a collective call."""
        self._join()
        return sum_over_trainers([float(value)], self.device)[0]

    def mean(self, value: SupportsFloat, weight: SupportsFloat = 1) -> float:
        """Weighted mean over all trainers, 0 if the total weight is 0; a collective call.

        Args:
            value: Mean of this trainer; ignored if its weight is 0.
            weight: Number of items behind the value.
        """
        self._join()
        heavy = float(weight)
        sums = sum_over_trainers([float(value) * heavy if heavy else 0.0, heavy], self.device)
        return sums[0] / sums[1] if sums[1] else 0.0

    def keep_best(
        self,
        model: nn.Module,
        accuracy: SupportsFloat | None = None,
        loss: SupportsFloat | None = None,
        patience: int = 5,
    ) -> bool:
        """Keep the best model in `best.pt`, a plain `state_dict`; a collective call.

        Args:
            model: The model, prepared or not.
            accuracy: Score of the model, higher is better; the value of rank 0 is used.
            loss: Alternative score, lower is better.
            patience: Number of calls without improvement after which to stop.

        Returns:
            Whether to stop, the same on all trainers.

        Raises:
            SpecError: Not exactly one score is given.
        """
        if (accuracy is None) == (loss is None):
            raise SpecError("keep_best needs exactly one score", "pass either accuracy or loss")
        self._join()
        score = float(accuracy) if accuracy is not None else -float(loss or 0.0)
        score = from_first_trainer(score, self.device)
        # On the CPU, so that it loads on machines without a GPU.
        return self._keeper.show(
            score, lambda: dict(as_plain(plain(model).state_dict(), "model")), patience
        )

    def infer(
        self, model: nn.Module, output: str | os.PathLike[str] | None = None, **settings: Any
    ) -> Inference | None:
        """Run layer-wise inference for all nodes with all neighbours; a collective call.

        Rank 0 computes while the others wait; all graph partitions must be on its machine.

        Args:
            model: The model, prepared or not.
            output: Folder for the tables; none for the output folder.
            **settings: Arguments of `headrace.infer`.

        Returns:
            The result on rank 0, none on the others.

        Raises:
            SpecError: The model does not support layer-wise inference, or a graph partition is
                missing.
        """
        self._join()
        done = None
        if self.rank == 0:
            folder = self.output if output is None else output
            done = infer(plain(model), self.graph, folder, **settings)
        from_first_trainer(0.0, self.device)
        return done

    def _join(self) -> None:
        join_group(self.device, self.world_size)


def train(
    train_func: TrainFunction,
    graph: str | os.PathLike[str] | None = None,
    config: Mapping[str, Any] | None = None,
    output: str | os.PathLike[str] = ".",
) -> object:
    """Call a training function, as a trainer of the current run or in a single process.

    Meanwhile CPUs flush denormal numbers to zero; `torch.set_flush_denormal(False)` in the function
    keeps them.

    Args:
        train_func: Function of a `TrainContext`.
        graph: Folder of the graph, if the run has none.
        config: Settings of the script, overridden by those of the run.
        output: Output folder, if the run has none.

    Returns:
        The result of the function.
    """
    context = TrainContext(current_run(), graph, config, output)
    try:
        with denormals_flushed():
            return train_func(context)
    finally:
        context.close()
        leave_group()


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    number = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    return torch.device("cuda", number)
