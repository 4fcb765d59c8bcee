"""Parameter servers and their trainers in one process: threads instead of machines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any, TypeVar

import numpy as np

from headrace.core.errors import SpecError
from headrace.rpc.config import RpcLimits
from headrace.rpc.errors import StoreError
from headrace.rpc.framing import Message, decode_request, encode_request
from headrace.training.parameter_server.client import Notify, Servers
from headrace.training.parameter_server.service import ParameterService
from headrace.training.parameter_server.types import Record

T = TypeVar("T")


class DirectChannel:
    """Asks a server in the thread of whoever asks; requests are bytes on their way."""

    def __init__(self, operations: ParameterService) -> None:
        self._operations = operations

    def ask(self, fields: Any, arrays: Sequence[np.ndarray], timeout_s: float) -> Future[Message]:
        future: Future[Message] = Future()
        request = decode_request(memoryview(encode_request(1, fields, arrays)))
        try:
            reply = self._operations.answer(request)
        except SpecError as error:
            future.set_exception(StoreError(error.problem, error.remedy))
        else:
            copies = tuple(array.copy() for array in reply.arrays)
            future.set_result(Message(1, reply.fields, copies))
        return future

    def close(self) -> None:
        pass


def make_servers(num_servers: int, num_trainers: int = 1) -> list[ParameterService]:
    """Servers that tell time by counting."""
    times = count()
    return [
        ParameterService(num_trainers, RpcLimits(), lambda: float(next(times)), answer_s=0.01)
        for _ in range(num_servers)
    ]


def reach(
    made: Sequence[ParameterService],
    rank: int = 0,
    record: Record | None = None,
    timeout_s: float = 1e9,
    notify: Notify = lambda _name, _waits: None,
) -> Servers:
    """A trainer's way to servers."""
    times = count()
    channels = {f"ps{p}": DirectChannel(each) for p, each in enumerate(made)}
    return Servers(channels, rank, lambda: float(next(times)), timeout_s, record, notify)


def together(num_trainers: int, train: Callable[[int], T]) -> list[T]:
    """What trainers return who run at the same time; the first error, if any."""
    found: list[Any] = [None] * num_trainers

    def run(rank: int) -> None:
        try:
            found[rank] = train(rank)
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(num_trainers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found
