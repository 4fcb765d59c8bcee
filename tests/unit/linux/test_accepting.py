"""Listeners outlive times without descriptors."""

from __future__ import annotations

import errno
import socket
from typing import Any, cast

import pytest

from headrace.linux.accepting import accept


class Listening:
    def __init__(self, *answers: int | socket.socket) -> None:
        self.answers = list(answers)

    def accept(self) -> tuple[socket.socket, str]:
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            raise OSError(answer, "no")
        return answer, ""


def test_an_accept_is_repeated_until_there_is_a_descriptor() -> None:
    with socket.socket() as found:
        listening = Listening(errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, found)
        assert accept(cast(Any, listening)) is found


def test_the_end_of_a_listener_is_told() -> None:
    with pytest.raises(OSError, match="no"):
        accept(cast(Any, Listening(errno.EINVAL)))
