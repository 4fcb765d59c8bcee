"""RPC endpoints of a run, in this process, to be asked wrongly.

A trial is one request. It is `refused` (nothing may change), `answered` (reading may change nothing
either), `ignored` or `cut` (nothing may change). Any other outcome is wrong, and says why.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Queue
from typing import Any, cast

import numpy as np

from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.sampler_worker.channels.rpc import _SubBatches
from headrace.graph.store.embedding_service import Embeddings, EmbeddingService
from headrace.graph.store.embedding_table import EmbeddingSpec
from headrace.graph.store.service import StoreService
from headrace.graph.store.shard import open_shard
from headrace.rpc.config import RpcLimits
from headrace.rpc.connection import ACCEPTED, LENGTH
from headrace.rpc.credentials import Credentials, Secret
from headrace.rpc.framing import decode_frame, encode_request
from headrace.rpc.server import RpcServer, Service, encode_reply
from headrace.training.parameter_server.optimizer_specs import OPTIMIZERS, options_of
from headrace.training.parameter_server.service import ParameterService
from tests.support.fuzz_requests import (
    Draw,
    Right,
    fuzzed_request,
    mutated_bytes,
)
from tests.support.wrong_requests import NUMBER, SAMPLER_REQUESTS, STORE_REQUESTS

FINE = frozenset({"refused", "answered", "ignored", "cut"})
LIMITS = RpcLimits(max_rows=400, max_request_bytes=1 << 20, max_reply_bytes=1 << 20)


class Endpoint(ABC):
    """Something that takes requests; `stack` closes what it opens."""

    name = ""

    def __init__(self, graph: Path, scratch: Path, stack: ExitStack) -> None:
        self.graph, self.scratch, self.stack = graph, scratch, stack
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Create it as it is at the beginning of a run."""

    @abstractmethod
    def try_one(self, draw: Draw) -> str:
        """Send one request; returns the outcome."""

    def compare(self, before: str, outcome: str) -> str:
        """The outcome, or that the state has changed."""
        return outcome if self.digest() == before else f"changed although {outcome}"

    def digest(self) -> str:
        """Of all state that requests may change."""
        return ""


def digest_of(*values: Any) -> str:
    """A hash of nested values and arrays."""
    made = hashlib.blake2b(digest_size=8)

    def add(value: Any) -> None:
        if isinstance(value, np.ndarray):
            made.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        elif isinstance(value, Mapping):
            for key in sorted(value, key=repr):
                add(key)
                add(value[key])
        elif isinstance(value, list | tuple | set | frozenset):
            made.update(b"[")
            for each in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
                add(each)
        else:
            made.update(repr(value).encode())
        made.update(b";")

    add(values)
    return made.hexdigest()


class RpcEndpoint(Endpoint):
    """A service behind an RPC server, without the socket."""

    service: Service
    rights: list[Right]
    changing: frozenset[str] = frozenset()

    def try_one(self, draw: Draw) -> str:
        before = self.digest()
        operation, data = fuzzed_request(draw, self.rights)
        pieces = encode_reply(self.service, memoryview(data), int(draw.integers(1, 3)))
        head = memoryview(pieces[0])[LENGTH.size :]
        reply = decode_frame(head)
        problem = reply.fields.get("problem")
        if problem == "the store failed to answer":
            return f"{operation} failed"
        if problem is not None:
            return self.compare(before, "refused")
        return "answered" if operation in self.changing else self.compare(before, "answered")


class Store(RpcEndpoint):
    """A graph store with two embeddings."""

    name = "store"
    changing = frozenset({"embed", "push", "put"})

    def open(self) -> None:
        shard = open_shard(open_graph(self.graph), 0)
        self._embeddings = Embeddings(shard)
        self._embeddings.make("node", "spare", EmbeddingSpec(dim=6, optimizer="sgd"))
        self._embeddings.make("node", "adam", EmbeddingSpec(dim=6, num_trainers=2))
        # Nobody waits for the other trainer, who does not exist.
        EmbeddingService.push.__defaults__ = (0.0,)
        self.service = StoreService(shard, LIMITS, embeddings=self._embeddings)
        self.rights = [(fields, arrays) for fields, arrays, _ in STORE_REQUESTS.values()]
        push, arrays, _ = STORE_REQUESTS["push"]
        self.rights += [({**push, "column": "adam", "rank": rank}, arrays) for rank in (0, 1)]

    def digest(self) -> str:
        return digest_of(
            [
                [key, each.embedding.values, each.embedding.states, each.num_rounds]
                + [[rank, sorted(each._pushes[rank])] for rank in sorted(each._pushes)]
                for key, each in self._embeddings._optimizer_shards.items()
            ]
        )


class ParameterServer(RpcEndpoint):
    """A parameter server for two trainers, with a model of each optimizer."""

    name = "parameter server"
    changing = frozenset({"begin", "gradients", "scale", "forget", "load"})

    def open(self) -> None:
        import torch

        made = ParameterService(2, LIMITS, lambda: 0.0, answer_s=0.0)
        self.service, self._models = made, made._models
        self.rights = [({"op": "ping"}, [])]
        pieces = [np.array([2, 1]), np.array([0, 0])]
        values, has = np.ones(3, np.float32), np.ones(2, bool)
        for model, optimizer in enumerate(OPTIMIZERS):
            options = options_of(getattr(torch.optim, optimizer)([torch.ones(1)], lr=0.1))
            own = {"model": model}
            begin = {
                "op": "begin", **own, "optimizer": optimizer, "options": options,
                "dtype": "float32",
            }  # fmt: skip
            step: dict[str, Any] = {"op": "gradients", **own, "step": 1, "iteration": 1}
            held = {**step, "holds": True}
            rights: list[Right] = [
                ({**begin, "rank": 0}, [*pieces, values]),
                ({**begin, "rank": 1}, pieces),
            ]
            for data in (encode_request(NUMBER, *right) for right in rights):
                encode_reply(made, memoryview(data), 1)
            self.rights += [
                *rights,
                ({**step, "rank": 0, "options": options}, [values, has]),
                ({**step, "rank": 1}, [values, has]),
                ({**held, "rank": 0, "options": options}, [values, has]),
                ({**step, "rank": 0, "options": options}, [values, has, values]),
                ({"op": "scale", **own, "step": 1, "factor": 0.5}, []),
                ({"op": "wait", **own, "step": 1}, []),
                ({"op": "names", **own}, []),
                ({"op": "state", **own, "name": "step"}, []),
                ({"op": "forget", **own}, []),
                ({"op": "load", **own, "name": "exp_avg"}, [values, has]),
                ({"op": "load", **own, "name": "step"}, [np.ones(2), has]),
            ]

    def try_one(self, draw: Draw) -> str:
        # Most steps are the next ones: others are refused at once.
        for fields, _ in self.rights:
            rounds = self._models.get(fields.get("model", -1))
            if rounds is not None and "step" in fields:
                cast(dict[str, Any], fields)["step"] = rounds.num_rounds + 1
        return super().try_one(draw)

    def digest(self) -> str:
        found: list[Any] = []
        for model in sorted(self._models):
            rounds = self._models[model]
            shard = rounds._shard
            found += [model, rounds.shape, rounds.num_rounds, sorted(rounds._pushes)]
            found += [rounds._sum is None, str(rounds._failure)]
            if shard is not None:
                kept = [
                    {name: str(value) for name, value in shard._optimizer.state[piece].items()}
                    for piece in shard._pieces
                    if piece in shard._optimizer.state
                ]
                found += [shard.values, shard._options, kept]
        return digest_of(found)


class Sampler(RpcEndpoint):
    """A sampler with scores, whose trainer is the first connection."""

    name = "sampler"
    changing = frozenset({"next", "model"})

    def open(self) -> None:
        self._queue: Queue[Any] = Queue()
        for number in range(2000):
            self._queue.put(({"part": {"number": number}}, (np.arange(3),)))
        self._models: list[bytes] = []
        made = _SubBatches(
            self._queue,
            threading.Semaphore(0),
            lambda: None,
            self._models.append,
        )
        self.service, self._made = made, made
        self.rights = [(fields, arrays) for fields, arrays, _ in SAMPLER_REQUESTS.values()]
        self.rights.append(({"op": "model"}, [np.arange(9, dtype=np.uint8)]))

    def digest(self) -> str:
        return digest_of(self._queue.qsize(), self._made._trainer, len(self._models))


class Handshake(Endpoint):
    """The socket of an RPC server: the token, lengths and requests, as bytes."""

    name = "rpc connection"

    def open(self) -> None:
        import torch

        self._credentials = Credentials(Secret.random())
        self._service = ParameterService(2, LIMITS, lambda: 0.0, answer_s=0.0)
        self._server = RpcServer(self._service, self._credentials, limits=LIMITS)
        self.stack.callback(self._server.close)
        options = options_of(torch.optim.SGD([torch.ones(1)], lr=0.1))
        self._rights: list[Right] = [
            ({"op": "ping"}, []),
            ({"op": "wait", "model": 0, "step": 1}, []),
            ({"op": "begin", "model": 0, "rank": 1, "optimizer": "SGD", "options": options}, []),
        ]

    def digest(self) -> str:
        return digest_of(len(self._service._models), self._service._counts["failed"])

    def try_one(self, draw: Draw) -> str:
        before, token = self.digest(), self._credentials.token.reveal()
        has_token = draw.random() < 0.5
        if not has_token:
            token = draw.bytes(len(token)) if draw.random() < 0.3 else mutated_bytes(draw, token)
        data = LENGTH.pack(len(token) if draw.random() < 0.9 else int(draw.integers(2**32))) + token
        _, request = fuzzed_request(draw, self._rights)
        data += LENGTH.pack(len(request) if draw.random() < 0.8 else 2**31) + request
        with socket.create_connection(("127.0.0.1", self._server.port), 60) as sock:
            heard = b""
            with suppress(OSError):
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                while more := sock.recv(1 << 16):
                    heard += more
        if heard[:4] == ACCEPTED and token != self._credentials.token.reveal():
            return "accepted without the token"
        return self.compare(before, "answered" if len(heard) > 8 else "cut")
