"""Score remote nodes for a sampler: `python -m headrace.training.remote_sampling`.

See `headrace.graph.sampler_worker.scoring` for the messages. Models come from the trainer of the
same run, whose script this machine would run as well.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import pickle
import signal
import sys
import time  # noqa: TID251 - the process entry point supplies the clock

import numpy as np
import torch

from headrace.core.errors import HeadraceError
from headrace.graph.sampler_worker.config import SamplerConfig
from headrace.graph.sampler_worker.graph_access import open_access
from headrace.graph.sampler_worker.scoring import read_message, write_message
from headrace.rpc.reconnect import RetryBudget
from headrace.training.remote_sampling.explanation_graph import ExplanationGraph, build
from headrace.training.remote_sampling.scores import compute

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Answer models with scores until standard input closes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        return 0
    # A user's function may print.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    models = sys.stdin.buffer
    first = read_message(models)
    if first is None:
        return 0
    fields = json.loads(first)
    config = SamplerConfig.model_validate(fields["config"])
    assert config.scoring is not None
    torch.set_num_threads(1)
    graph: ExplanationGraph | None = None
    while (data := read_message(models)) is not None:
        began_s = time.process_time()
        try:
            if graph is None:
                # Without a cache: every row is fetched once.
                alone = config.model_copy(update={"cache": None})
                budget = None
                if config.retry_budget_s:
                    budget = RetryBudget(config.retry_budget_s, time.monotonic)
                access, _ = open_access(alone, retry_budget=budget)
                graph = build(access, fields["home"], config.scoring.column)
                access.stores.close()
            model, score = pickle.loads(data)
            scores = compute(score, model.float(), graph)
            reply = {
                "remote": graph.remote,
                "node_scores": scores.nodes.numpy(),
                "feature_scores": scores.features.numpy(),
                "cpu_s": np.array(time.process_time() - began_s),
            }
        except HeadraceError as error:
            reply = {"error": np.array(error.problem)}
        except Exception as error:
            reply = {"error": np.array(f"{type(error).__name__}: {error}")}
        file = io.BytesIO()
        np.savez(file, **reply)  # type: ignore[arg-type]
        write_message(replies, file.getvalue())
    return 0


if __name__ == "__main__":
    sys.exit(main())
