"""In-process store, for graph partitions that no store process serves."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from headrace.core.errors import HeadraceError
from headrace.graph.store.service import StoreService
from headrace.rpc.framing import Fields, Message


class InProcessChannel:
    """A `Channel` to a service in this process."""

    def __init__(self, operations: StoreService) -> None:
        self._operations = operations

    def ask(
        self, fields: Fields, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Future[Message]:
        """Handle the request immediately; see `Channel`."""
        reply: Future[Message] = Future()
        try:
            reply.set_result(self._operations.answer(Message(0, fields, tuple(arrays))))
        except HeadraceError as error:
            reply.set_exception(error)
        return reply

    def close(self) -> None:
        """Release all waiting requests."""
        self._operations.close()
