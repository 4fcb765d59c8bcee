"""Scores of remote nodes and features, computed by a process of its own from the newest model.

The process imports torch, which samplers do not need. Messages in both directions are a length and
bytes: first the sampler's config and its home partition, then a pickled model each, answered by
scores or an error as a `numpy.savez` file. Sampling goes on with the last scores meanwhile.
"""

from __future__ import annotations

import io
import json
import logging
import struct
import subprocess
import sys
import threading
from typing import IO

import numpy as np

from headrace.core.errors import HeadraceError, SpecError
from headrace.graph.loader.graph_view import PartitionedGraphView
from headrace.graph.sampler_worker.config import SamplerConfig, ScoringConfig
from headrace.graph.sampling.remote_scores import RemoteScores

_COMMAND = [sys.executable, "-m", "headrace.training.remote_sampling"]
_LENGTH = struct.Struct("<Q")

MAX_MODEL_BYTES = 1 << 30
"""Size of a model that a sampler accepts."""


class NewestModel:
    """The newest model of the trainer, pickled; one that waits to be used is replaced."""

    def __init__(self) -> None:
        self._models: list[bytes | None] = []
        self._changed = threading.Condition()

    def put(self, model: bytes | None) -> None:
        """Replace the model; None if there will be no more."""
        with self._changed:
            self._models = [model]
            self._changed.notify_all()

    def take(self) -> bytes | None:
        """Wait for a model that was not taken yet."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._models))
            return self._models.pop()


class Scorer:
    """Keeps the scores of the newest model.

    Args:
        config: Config of the sampler.
        scoring: How scores are used.
        access: The graph.
        seeds: Original ids of the sampler's seeds; most are in its home partition.
        models: Models of the trainer.
    """

    def __init__(
        self,
        config: SamplerConfig,
        scoring: ScoringConfig,
        access: PartitionedGraphView,
        seeds: np.ndarray,
        models: NewestModel,
    ) -> None:
        self._scoring = scoring
        self._node_type = config.node_type
        self._num_nodes = access.num_nodes[config.node_type]
        owners = access.graph.owner(config.node_type, access.to_new(config.node_type, seeds))
        num_seeds = np.bincount(owners, minlength=access.graph.num_parts)
        # Files of other partitions may be missing on this machine.
        own = [part for part in range(len(num_seeds)) if part not in access.stores]
        self._home = max(own or range(len(num_seeds)), key=lambda part: int(num_seeds[part]))
        first = {"config": config.model_dump(mode="json"), "home": self._home}
        self._first = json.dumps(first).encode()
        # Cached rows are whole: they save more than left-out dimensions.
        self._features = scoring.features if config.cache is None else 1.0
        self._models = models
        self._scores: RemoteScores | None = None
        self._error: HeadraceError | None = None
        threading.Thread(target=self._score, name="scores", daemon=True).start()

    def scores(self) -> RemoteScores | None:
        """The newest scores, None before the first; raise `SpecError` if scoring failed."""
        if self._error is not None:
            raise self._error
        return self._scores

    def _score(self) -> None:
        process: subprocess.Popen[bytes] | None = None
        try:
            while True:
                model = self._models.take()
                if model is None:
                    return
                if process is None:
                    process = subprocess.Popen(
                        _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                    )
                    assert process.stdin is not None
                    write_message(process.stdin, self._first)
                assert process.stdin is not None
                assert process.stdout is not None
                write_message(process.stdin, model)
                reply = read_message(process.stdout)
                if reply is None:
                    raise _failed(f"the process ended with code {process.wait()}")
                self._scores = self._read(reply)
        except HeadraceError as error:
            self._error = error
        except Exception as error:
            self._error = _failed(f"{type(error).__name__}: {error}")

    def _read(self, reply: bytes) -> RemoteScores:
        with np.load(io.BytesIO(reply)) as found:
            if "error" in found:
                raise _failed(str(found["error"]))
            scores = RemoteScores.of(
                self._home,
                self._node_type,
                self._num_nodes,
                found["remote"],
                found["node_scores"],
                self._scoring.column,
                found["feature_scores"],
                self._features,
                self._scoring.least,
            )
            num_dims = len(found["feature_scores"] if scores.dims is None else scores.dims)
            logging.info(
                "scored %d remote nodes and %d of %d features in %.1f s of CPU",
                len(found["remote"]), num_dims, len(found["feature_scores"]), found["cpu_s"],
            )  # fmt: skip
        return scores


def _failed(problem: str) -> HeadraceError:
    return SpecError(f"scores of remote nodes failed: {problem}", "see the sampler's log")


def write_message(file: IO[bytes], data: bytes) -> None:
    """Write a length and bytes."""
    file.write(_LENGTH.pack(len(data)))
    file.write(data)
    file.flush()


def read_message(file: IO[bytes]) -> bytes | None:
    """Read a length and bytes; None at the end of the file."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = file.read(length)
    return data if len(data) == length else None
