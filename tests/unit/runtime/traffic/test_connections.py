"""Both ends of a connection make two ways between tasks."""

from __future__ import annotations

from headrace.runtime.traffic.connections import ConnectionMatcher, End, Way, end_from, end_to

STORE, SAMPLER = ("10.0.0.1", 7000), ("10.0.0.2", 40000)
AT_STORE = End("store0", STORE, SAMPLER)
AT_SAMPLER = End("sampler0.0", SAMPLER, STORE)
WAYS = {
    Way("store0", "sampler0.0", STORE, SAMPLER),
    Way("sampler0.0", "store0", SAMPLER, STORE),
}


def test_a_connection_is_known_once_both_machines_have_reported_it() -> None:
    joiner = ConnectionMatcher()
    assert joiner.add("m0", [AT_STORE]) == []
    assert set(joiner.add("m1", [AT_SAMPLER])) == WAYS


def test_connections_of_others_are_not_joined() -> None:
    joiner = ConnectionMatcher()
    joiner.add("m0", [AT_STORE])
    assert joiner.add("m1", [End("sampler0.0", ("10.0.0.2", 40001), STORE)]) == []


def test_both_ways_go_with_either_end() -> None:
    joiner = ConnectionMatcher()
    joiner.add("m0", [AT_STORE])
    joiner.add("m1", [AT_SAMPLER])
    assert set(joiner.remove("m1", [AT_SAMPLER.key])) == WAYS
    assert joiner.remove("m0", [AT_STORE.key]) == []


def test_a_machine_is_forgotten_with_all_its_ends() -> None:
    joiner = ConnectionMatcher()
    joiner.add("m0", [AT_STORE])
    joiner.add("m1", [AT_SAMPLER])
    assert set(joiner.forget("m0")) == WAYS
    # It comes back, as an agent does that was started again.
    assert set(joiner.add("m0", [AT_STORE])) == WAYS


def test_an_end_survives_being_sent() -> None:
    assert end_from(end_to(AT_STORE)) == AT_STORE
