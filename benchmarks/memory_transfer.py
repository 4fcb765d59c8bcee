"""Times of steps with settings that were not measured, for `memory.py`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.memory_models import Sampled, Setting
from headrace.core.step_counts import StepCounts
from headrace.costs.step_time import fit_step_time
from headrace.linux.malloc import reuse_memory
from headrace.profiling.step_estimate.tracer import trace_steps

MODELS = ("GCN", "SAGE", "GAT", "GIN", "RGCN", "GATv2", "PNA", "Transformer", "edge")
WIDTHS, FANOUTS, SIZES = (32, 64, 128, 256), (4, 8, 12, 16), (64, 128, 256, 512)
NUM_FEW = 10
LEAST_S = 0.25
"""Each step is repeated for so long, and at least three times."""


@dataclass(frozen=True)
class Case:
    """A measured step."""

    graph: str
    setting: Setting
    counts: StepCounts
    seconds: float

    def row(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "graph": self.graph,
            **asdict(self.setting),
            "counts": list(self.counts),
            "seconds": self.seconds,
        }


def settings(is_quick: bool) -> Iterator[Setting]:
    """One of width, fan-out and batch size is varied at a time."""
    middle = Setting(width=64, fanout=8, batch_size=256)
    models = MODELS[:2] if is_quick else MODELS
    for model in models:
        own = replace(middle, model=model)
        yield from dict.fromkeys(
            [replace(own, width=width) for width in WIDTHS]
            + [replace(own, fanout=fanout) for fanout in FANOUTS]
            + [replace(own, batch_size=size) for size in SIZES]
        )


def measure(graphs: Sequence[str], is_quick: bool, log: Callable[[str], None]) -> list[Case]:
    """Trace and time the steps of all settings."""
    torch.set_num_threads(1)
    # As trainers do: else the time of large steps is that of page faults and of denormal numbers.
    reuse_memory()
    torch.set_flush_denormal(True)
    cases = []
    for name in graphs:
        graph = Sampled(name)
        for setting in settings(is_quick):
            batch = next(graph.batches(setting))
            _, step = graph.step(setting)
            counts = trace_steps(step, batch).counts
            _, step = graph.step(setting)
            cases.append(Case(name, setting, counts, _seconds(lambda: step(batch))))  # noqa: B023
        log(f"{name}: {len(cases)} steps")
    return cases


def _seconds(run: Callable[[], object]) -> float:
    run()
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) < LEAST_S:
        begin_s = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin_s)
    return median(taken)


def transfer(cases: Sequence[Case]) -> dict[str, Any]:
    """Errors of times that are estimated without steps of the same value."""
    kinds: dict[str, Callable[[Case], object]] = {
        "batch_size": lambda case: case.setting.batch_size,
        "fanout": lambda case: case.setting.fanout,
        "width": lambda case: case.setting.width,
        "model": lambda case: case.setting.model,
        "graph": lambda case: case.graph,
    }
    found: dict[str, Any] = {}
    num_inside = num_all = 0
    for kind, value_of in kinds.items():
        values = list(dict.fromkeys(map(value_of, cases)))
        if len(values) < 3:
            continue
        errors, inside = [], 0
        for value in values:
            seen = [case for case in cases if value_of(case) != value]
            model = fit_step_time(
                [case.counts for case in seen],
                [case.seconds for case in seen],
                [value_of(case) for case in seen],
            )
            for case in cases:
                if value_of(case) == value and not _is_middle(kind, case):
                    errors.append(abs(model.seconds(case.counts) / case.seconds - 1))
                    low, high = model.interval(case.counts)
                    inside += low <= case.seconds <= high
        found[kind] = {
            "mean_error": float(np.mean(errors)),
            "worst_error": float(np.max(errors)),
            "coverage": inside / len(errors),
            "num_cases": len(errors),
        }
        num_inside, num_all = num_inside + inside, num_all + len(errors)
    return {**found, "coverage": num_inside / num_all, "few_samples": few_samples(cases)}


def _is_middle(kind: str, case: Case) -> bool:
    """Whether a case differs from the usual one in something else than its kind."""
    setting = case.setting
    varied = {
        "width": setting.width != 64,
        "fanout": setting.fanout != 8,
        "batch_size": setting.batch_size != 256,
    }
    return kind in varied and any(varied[other] for other in varied if other != kind)


def few_samples(cases: Sequence[Case], num_draws: int = 20) -> dict[str, float]:
    """Error on all steps of a model fitted to a few of them."""
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(num_draws):
        chosen = set(rng.choice(len(cases), min(NUM_FEW, len(cases) // 2), replace=False).tolist())
        seen = [case for number, case in enumerate(cases) if number in chosen]
        model = fit_step_time([case.counts for case in seen], [case.seconds for case in seen])
        errors += [
            abs(model.seconds(case.counts) / case.seconds - 1)
            for number, case in enumerate(cases)
            if number not in chosen
        ]
    return {"num_samples": NUM_FEW, "mean_error": float(np.mean(errors))}
