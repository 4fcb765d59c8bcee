"""Write `coflows.yaml`: a training iteration of a mixture of experts, and the next forward passes.

    python examples/coflows/make.py --nic 50Gbps > examples/coflows/coflows.yaml

Two pipeline stages of three machines each hold two layers per stage. A layer is attention and
experts. The three machines of a stage hold one third of the experts each: an all-to-all sends
tokens to their experts, another one sends them back (`expert`). Stages pass activations and their
gradients on (`pipeline`). After the last micro-batch, the machines of a stage sum the gradients of
attention in a ring (`data`), and the next iteration's forward pass of that layer waits for them.
Machines run their tasks in the order 1F1B.
"""

from __future__ import annotations

import argparse

import numpy as np

NUM_STAGES, NUM_RANKS, NUM_LAYERS, NUM_BATCHES = 2, 3, 4, 3
TOKENS, HIDDEN = 4096, 4096
"""Tokens per micro-batch and machine, and the width of the model."""
ACTIVATION_BYTES = TOKENS * HIDDEN * 2
"""Activations of a micro-batch in 16 bits."""
CHOICES = 2
"""Experts per token."""
ATTENTION_BYTES = 4 * HIDDEN * HIDDEN * 2
"""Gradients of the four matrices of attention, in 16 bits."""
ATTENTION_MS, EXPERTS_MS = 5.0, 6.0
"""Assumed times of a forward pass; a backward pass takes twice as long."""
SKEW = 1.0
"""Standard deviation of the logarithm of the experts' popularity."""

Parts = list[list[str]]
"""Tasks of consecutive parts, per machine of a stage."""


class Example:
    """Tasks and coflows of the file, in the order in which they are made."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.tasks: list[str] = []
        self.coflows: list[str] = []

    def part(
        self, name: str, layer: int, time_ms: float = 0.0, after: Parts | None = None
    ) -> list[str]:
        """Add a task on every machine of a layer's stage; `after` lists tasks per machine."""
        first = layer * NUM_STAGES // NUM_LAYERS * NUM_RANKS
        names = [f"{name}.m-{first + rank}" for rank in range(NUM_RANKS)]
        for rank, full in enumerate(names):
            line = f"name: {full}, machine: m-{first + rank}, time: {time_ms:g}ms"
            if after is not None:
                line += f", after: [{', '.join(after[rank])}]"
            self.tasks.append(f"{{{line}}}")
        return names

    def coflow(
        self, name: str, kind: str, group: int, layer: int, flows: list[tuple[str, str, float]]
    ) -> None:
        """Add a coflow with (source, target, bytes) per flow."""
        listed = ", ".join(f"{{src: {a}, dst: {b}, bytes: {size:.0f}}}" for a, b, size in flows)
        self.coflows.append(
            f"{{name: {name}, type: {kind}, bin: {group}, layer: {layer}, flows: [{listed}]}}"
        )

    def all_to_all(
        self, name: str, group: int, layer: int, src: list[str], dst: list[str], is_return: bool
    ) -> None:
        """Send tokens to experts of unequal popularity, or back."""
        drawn = np.random.default_rng([self.seed, group, layer])
        popularity = drawn.lognormal(0, SKEW, NUM_RANKS)
        volume = CHOICES * ACTIVATION_BYTES / popularity.sum()
        flows = [
            (src[a], dst[b], volume * popularity[a if is_return else b])
            for a in range(NUM_RANKS)
            for b in range(NUM_RANKS)
            if a != b
        ]
        self.coflow(name, "expert", group, layer, flows)

    def one_pass(self, iteration: int, batch: int, is_backward: bool) -> Parts:
        """A forward or backward pass of a micro-batch; returns the timed tasks per machine."""
        group = iteration * NUM_BATCHES + batch
        lines: Parts = [[] for _ in range(NUM_STAGES * NUM_RANKS)]
        before: list[str] = []
        layers = range(NUM_LAYERS)
        for layer in reversed(layers) if is_backward else layers:
            name = f"i{iteration}.b{batch}.l{layer}.{'bwd' if is_backward else 'fwd'}"
            stage = layer * NUM_STAGES // NUM_LAYERS
            is_new_stage = bool(before) and not before[0].endswith(f".m-{stage * NUM_RANKS}")
            after: Parts = [[] for _ in range(NUM_RANKS)]
            if before and not is_new_stage:
                after = [[task] for task in before]
            if iteration and not batch:
                updated = [
                    f"i{iteration - 1}.l{layer}.gradients.m-{stage * NUM_RANKS + rank}"
                    for rank in range(NUM_RANKS)
                ]
                after = [tasks + updated for tasks in after]
            if is_backward:
                parts = [
                    self.part(f"{name}.enter", layer, after=after),
                    self.part(f"{name}.experts", layer, 2 * EXPERTS_MS),
                    self.part(f"{name}.attention", layer, 2 * ATTENTION_MS),
                ]
            else:
                parts = [
                    self.part(f"{name}.attention", layer, ATTENTION_MS, after),
                    self.part(f"{name}.experts", layer, EXPERTS_MS),
                    self.part(f"{name}.leave", layer),
                ]
            if is_new_stage:
                flows = [
                    (a, b, float(ACTIVATION_BYTES)) for a, b in zip(before, parts[0], strict=True)
                ]
                self.coflow(f"{name}.stage", "pipeline", group, layer, flows)
            self.all_to_all(f"{name}.dispatch", group, layer, parts[0], parts[1], is_return=False)
            self.all_to_all(f"{name}.combine", group, layer, parts[1], parts[2], is_return=True)
            before = parts[2]
            for rank in range(NUM_RANKS):
                timed = parts[1:] if is_backward else parts[:2]
                lines[stage * NUM_RANKS + rank] += [part[rank] for part in timed]
        return lines

    def sum_gradients(self, iteration: int) -> None:
        """Ring all-reduce of the attention of every layer, after the last micro-batch."""
        last = NUM_BATCHES - 1
        for layer in reversed(range(NUM_LAYERS)):
            name = f"i{iteration}.l{layer}.gradients"
            updates = self.part(name, layer)
            sources = [
                update.replace(name, f"i{iteration}.b{last}.l{layer}.bwd.attention")
                for update in updates
            ]
            volume = ATTENTION_BYTES * 2 * (NUM_RANKS - 1) / NUM_RANKS
            flows = [(sources[r], updates[(r + 1) % NUM_RANKS], volume) for r in range(NUM_RANKS)]
            # As in Hermod, it has the number of the iteration's last micro-batch.
            self.coflow(name, "data", iteration * NUM_BATCHES + last, layer, flows)


def text(nic: str, seed: int = 0) -> str:
    """The file."""
    example = Example(seed)
    forward = [example.one_pass(0, batch, is_backward=False) for batch in range(NUM_BATCHES)]
    backward = [example.one_pass(0, batch, is_backward=True) for batch in range(NUM_BATCHES)]
    example.sum_gradients(0)
    following = [example.one_pass(1, batch, is_backward=False) for batch in range(NUM_BATCHES)]
    order: Parts = []
    for machine in range(NUM_STAGES * NUM_RANKS):
        # A stage is ahead by one forward pass per later stage.
        num_ahead = NUM_STAGES - 1 - machine // NUM_RANKS
        passes = forward[:num_ahead]
        for batch in range(NUM_BATCHES):
            passes = passes + forward[batch + num_ahead :][:1] + [backward[batch]]
        order.append([task for each in passes + following for task in each[machine]])
    lines = [
        "# Made by `python examples/coflows/make.py`, which explains it.",
        "version: 1",
        "name: mixture of experts",
        f"machines: [{{name: m, count: {NUM_STAGES * NUM_RANKS}, nic: {nic}}}]",
        "types: [expert, pipeline, data]",
        "tasks:",
        *(f"  - {line}" for line in example.tasks),
        "coflows:",
        *(f"  - {line}" for line in example.coflows),
        "order:",
        *(f"  - [{', '.join(line)}]" for line in order),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the file."""
    parser = argparse.ArgumentParser(description="Write a graph of coflows.")
    parser.add_argument("--nic", default="50Gbps", help="bandwidth of a machine")
    parser.add_argument("--seed", type=int, default=0, help="seed of the experts' popularity")
    args = parser.parse_args()
    print(text(args.nic, args.seed), end="")


if __name__ == "__main__":
    main()
