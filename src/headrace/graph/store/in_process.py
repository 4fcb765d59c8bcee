"""A store within the process that asks it: for parts that nobody serves."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from headrace.core.errors import HeadraceError
from headrace.graph.store.service import StoreService
from headrace.rpc.framing import Fields, Message


class InProcessChannel:
    """A `Channel` without a connection.

    Args:
        operations: Who answers.
    """

    def __init__(self, operations: StoreService) -> None:
        self._operations = operations

    def ask(
        self, fields: Fields, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Future[Message]:
        """Answer at once; see `Channel`."""
        asked: Future[Message] = Future()
        try:
            asked.set_result(self._operations.answer(Message(0, fields, tuple(arrays))))
        except HeadraceError as error:
            asked.set_exception(error)
        return asked

    def close(self) -> None:
        """Let nobody wait any more."""
        self._operations.close()
