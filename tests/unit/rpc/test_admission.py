"""Connections without proof: how many stay, and who has to go for a new one."""

from __future__ import annotations

import resource

import pytest

from headrace.rpc.admission import Admission, admission, max_unauthenticated


class Peer:
    def __init__(self, name: str, gone: list[str]) -> None:
        self._name, self._gone = name, gone

    def evict(self) -> None:
        self._gone.append(self._name)


def test_the_oldest_goes_for_a_new_one() -> None:
    gone: list[str] = []
    admitted = Admission(2)
    for name in "abcd":
        admitted.add(Peer(name, gone), "h")
    assert gone == ["a", "b"]
    assert len(admitted) == 2


def test_a_crowd_closes_its_own_connections() -> None:
    gone: list[str] = []
    admitted = Admission(4)
    own = Peer("own", gone)
    admitted.add(own, "trainer")
    for number in range(1000):
        admitted.add(Peer("x", gone), f"crowd{number % 2}")
    assert gone == ["x"] * 997
    assert admitted.remove(own)
    assert not admitted.remove(own)
    assert len(admitted) == 3


def test_whoever_is_authenticated_is_never_closed() -> None:
    gone: list[str] = []
    admitted = Admission(1)
    own = Peer("own", gone)
    admitted.add(own, "h")
    admitted.remove(own)
    assert not admitted.evict()
    admitted.add(Peer("a", gone), "h")
    assert admitted.evict()
    assert gone == ["a"]


@pytest.mark.parametrize(
    ("soft", "expected"), [(40, 16), (1024, 256), (20_000, 1024), (resource.RLIM_INFINITY, 1024)]
)
def test_most_descriptors_are_for_peers_of_the_run(
    monkeypatch: pytest.MonkeyPatch, soft: int, expected: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert max_unauthenticated() == expected


def test_all_listeners_of_a_process_share_the_limit() -> None:
    assert admission() is admission()


def test_evicted_connections_count_until_they_are_closed() -> None:
    admitted, peers = Admission(8), [Peer("x", []) for _ in range(11)]
    for peer in peers:
        admitted.add(peer, "h")
    assert admitted.is_behind
    admitted.remove(peers[0])
    assert not admitted.is_behind
