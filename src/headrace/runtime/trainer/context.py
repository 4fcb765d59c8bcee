"""What `train_func` of a script is given: its share of the run, and the other trainers.

The same function trains alone, on one machine or on many: alone there is one trainer, which has the
whole graph and all seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, SupportsFloat

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
    plain,
    share_gradients,
    sum_over_trainers,
)
from headrace.training.inference.layerwise import Inference, infer
from headrace.training.node_embedding import NodeEmbedding

TrainFunction = Callable[["TrainContext"], object]


class TrainContext:
    """A trainer's place in a run.

    Args:
        run: Which run; none to train alone.
        graph: A graph's folder, for whoever trains alone.
        config: What the script's settings are, for whoever trains alone.
        output: Folder for what is kept, if the run names none.

    Attributes:
        config: Settings of the script.
        rank: Number of the trainer, from 0.
        world_size: How many trainers there are.
        device: Where to compute.
        output: Folder for what is kept.
    """

    num_made: ClassVar[int] = 0
    """Contexts of this process: whether a script trains by itself."""

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
            SpecError: The run has none.
        """
        if self._graph is None:
            if self._folder is None:
                raise SpecError(
                    "this training has no graph",
                    "give one: `headrace run --graph DIR`, or "
                    "`headrace.train(train_func, graph=DIR)`",
                )
            self._graph = open_graph(self._folder)
        return self._graph

    def loader(self, split: str, num_neighbors: Any = None, **settings: Any) -> NeighborLoader:
        """Batches of this trainer's seeds of a split.

        Seeds of `train` are shuffled, and a plan says how many of them a batch has: `batch_size`
        only counts where there is no plan, so that one script is right everywhere.

        Args:
            split: `train`, `val` or `test`.
            num_neighbors: As in PyG; only needed for the first call of each split, which later ones
                get the loader of.
            **settings: Of `NeighborLoader`; `node_type` in a graph with types.

        Raises:
            SpecError: There is no such split, or the plan says otherwise.
        """
        if split in self._loaders and num_neighbors is None and not settings:
            return self._loaders[split]
        if split not in SPLITS:
            raise SpecError(f"there is no split {split!r}", f"use one of {', '.join(SPLITS)}")
        if num_neighbors is None:
            raise SpecError(f"a loader of {split} has no num_neighbors", "say how many per hop")
        settings = {"shuffle": split == "train", **settings}
        node_type = settings.pop("node_type", None)
        nodes: Any = split
        run = self._run
        if run is not None and run.requests is not None:
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

    def epochs(self, num: int | None = None) -> Iterator[int]:
        """Numbers of epochs from 0: in a run that was resumed, of those that are left.

        A loop over them is what checkpoints are made of: one is made when it comes to an end, and
        every so many steps, while a loop over `loader("train")` asks for its next batch.

        Args:
            num: How many there are in all; none for no end.
        """
        return self._checkpoints.epochs(num)

    def keep(self, **things: Any) -> None:
        """Have more in checkpoints than the prepared model, its optimizer and random numbers.

        What rank 0 has is kept, and given to all trainers when the run is resumed.

        Args:
            **things: By name: whatever has `state_dict` and `load_state_dict`, such as a scheduler;
                a `torch.Generator`; a dict or a list of tensors and plain values.

        Raises:
            SpecError: Something cannot be kept.
        """
        self._checkpoints.keep(things)

    def close(self) -> None:
        """Wait until the last checkpoint is written, and leave the stores."""
        self._checkpoints.close()
        self._embeddings.close()

    def prepare(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **settings: Any
    ) -> Any:
        """Make a model learn with all trainers.

        Args:
            model: The same on all of them; parameters of rank 0 are taken.
            optimizer: Of the model's parameters. It stays the same object; where the plan has
                parameter servers, they make its steps.
            **settings: Of torch's `DistributedDataParallel`, e.g. `find_unused_parameters`.

        Returns:
            The model to call, and the optimizer if one was given.

        Raises:
            SpecError: There are parameter servers, and no optimizer or one that they do not know.
        """
        model = model.to(self.device)
        hook_model(self._run, model.parameters())
        self._checkpoints.add(model, optimizer)
        if optimizer is not None:
            optimizer.register_step_post_hook(lambda *_: self._embeddings.step())
        if self._served is not None:
            self._join()
            self._served.share(model, optimizer)
        elif self.world_size > 1:
            self._join()
            steps = None if self._run is None else steps_of(self._run)
            if steps is not None and STEP.watch is None:
                STEP.watch = ExchangeWatch(steps.clock, steps.exchange)
            model = share_gradients(model, self.device, **settings)
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
        """Learnable rows of nodes, in the stores; all trainers must ask.

        Every step of an optimizer that was prepared is a step of theirs.

        Args:
            name: What they are called; also the node type, if that is not given.
            dim: Numbers per row.
            node_type: Which nodes have them; not needed if there is one type.
            optimizer: `sgd`, `adagrad` or `adam`, as torch's for sparse gradients.
            lr: Step size.
            seed: Of first values, which follow from it, the names and a node's id.
            init: First values are uniform between minus and plus this; none for `1 / sqrt(dim)`.

        Returns:
            A module: `rows = embedding(batch.n_id)`.

        Raises:
            SpecError: There is no such node type, or a setting is wrong.
        """
        self._join()
        given = {"dim": dim, "optimizer": optimizer, "seed": seed, "bound": init}
        made, kept = self._embeddings.make(self.graph, name, node_type, lr, **given)
        self._checkpoints.know({f"embedding {name}": kept})
        return made

    def clip_grad_norm(self, model: nn.Module, max_norm: float) -> float:
        """Scale a model's gradients down if their norm is too large; all trainers must ask.

        Args:
            model: As `prepare` gave it. With parameter servers, what its optimizer has counts.
            max_norm: The largest norm of all gradients together that is left as it is.

        Returns:
            The norm as it was.

        Raises:
            SpecError: There are parameter servers, and the model was not prepared.
        """
        if self._served is not None:
            return self._served.clip(plain(model), max_norm)
        return float(nn.utils.clip_grad_norm_(plain(model).parameters(), max_norm))

    def report(self, **figures: SupportsFloat | str) -> None:
        """Show figures, those of rank 0; see `headrace.report`."""
        if self.rank == 0:
            report(**figures)

    def sum(self, value: SupportsFloat) -> float:
        """Sum over all trainers, which must all ask."""
        self._join()
        return sum_over_trainers([float(value)], self.device)[0]

    def mean(self, value: SupportsFloat, weight: SupportsFloat = 1) -> float:
        """Mean over all trainers, which must all ask; 0 if nobody has any weight.

        Args:
            value: A mean of this trainer; ignored if it has no weight.
            weight: Over how many.
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
        """Keep the best model in `best.pt`, a plain `state_dict`; all trainers must ask.

        Args:
            model: As `prepare` gave it, or as it was before.
            accuracy: How good it is, the more the better; rank 0 decides.
            loss: Instead, how bad it is.
            patience: How many calls may follow without a better model.

        Returns:
            Whether it is time to stop, the same for all trainers.

        Raises:
            SpecError: Not exactly one figure is given.
        """
        if (accuracy is None) == (loss is None):
            raise SpecError("a model is kept by one figure", "give either accuracy or loss")
        self._join()
        score = float(accuracy) if accuracy is not None else -float(loss or 0.0)
        score = from_first_trainer(score, self.device)
        # On the CPU: a model that learnt on a GPU must load where there is none.
        return self._keeper.show(
            score, lambda: dict(as_plain(plain(model).state_dict(), "model")), patience
        )

    def infer(
        self, model: nn.Module, output: str | os.PathLike[str] | None = None, **settings: Any
    ) -> Inference | None:
        """Compute the model for all nodes from all neighbours; all trainers must ask.

        The first trainer computes and the others wait: all parts must be on its machine.

        Args:
            model: As `prepare` gave it, or as it was before.
            output: Folder for the tables; else the one for what is kept.
            **settings: Of `headrace.infer`.

        Returns:
            What was made, for the first trainer.

        Raises:
            SpecError: The model cannot be computed layer by layer, or a part is not there.
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
    """Call a training function: in a run with its share of it, else alone.

    Args:
        train_func: Gets a `TrainContext`.
        graph: A graph's folder, if a run names none.
        config: Settings for the function; those of a run come first.
        output: Folder for what is kept, if a run names none.

    Returns:
        What the function returns.
    """
    context = TrainContext(current_run(), graph, config, output)
    try:
        return train_func(context)
    finally:
        context.close()
        leave_group()


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    number = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    return torch.device("cuda", number)
