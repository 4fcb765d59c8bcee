from __future__ import annotations

import socket

from headrace.linux.network import unreachable


def test_who_listens_or_refuses_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert unreachable({"m0": ("127.0.0.1", port)}) == {}
    assert unreachable({"m0": ("127.0.0.1", port)}) == {}
    assert unreachable({}) == {}


def test_who_does_not_answer_is_not() -> None:
    # A full backlog drops what comes next, as a cut link does.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        place = ("127.0.0.1", server.getsockname()[1])
        with socket.create_connection(place), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(place)
            assert unreachable({"m1": place}, timeout_s=0.2) == {"m1": "it does not answer"}
