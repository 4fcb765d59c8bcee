"""A policy's rates become classes whose rates fit on the card."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.tasks import EdgeKind
from headrace.policies.flow import FAIR, Flow
from headrace.runtime.traffic.class_shares import Port, default_rate, shares_of
from headrace.runtime.traffic.policy_rates import Rates

NIC = 50e6


def paths(num: int) -> dict[int, float]:
    return dict.fromkeys(range(num), NIC)


def given(*rates: float) -> dict[int, float]:
    return dict(enumerate(rates))


def total(num: int, *rates: float) -> float:
    shares = shares_of(NIC, paths(num), given(*rates))
    return sum(share.rate_bytes_per_s for share in shares.values()) + default_rate(NIC)


@pytest.mark.parametrize("num", [3, 10, 300])
@pytest.mark.parametrize("rates", [(), (NIC,), (NIC / 3,) * 3, (NIC, 0.0, 0.0), (1e3, 1e9, 0.0)])
def test_rates_never_add_up_to_more_than_the_card_has(num: int, rates: tuple[float, ...]) -> None:
    assert total(num, *rates) <= NIC * (1 + 1e-9)


def test_rates_and_what_is_borrowed_keep_the_proportions() -> None:
    shares = shares_of(NIC, paths(3), given(*(NIC * part / 8 for part in (1, 2, 5))))
    rates = [shares[i].rate_bytes_per_s for i in range(3)]
    assert [rate / rates[0] for rate in rates] == pytest.approx([1, 2, 5])
    quanta = [shares[i].quantum_bytes for i in range(3)]
    assert [quantum / quanta[0] for quantum in quanta] == pytest.approx([1, 2, 5])


def test_a_starved_flow_keeps_a_floor_and_the_first_gets_the_rest() -> None:
    shares = shares_of(NIC, paths(3), given(NIC, 0.0, 0.0))
    assert shares[1].rate_bytes_per_s == pytest.approx(0.02 * NIC)
    assert shares[0].rate_bytes_per_s >= 0.92 * NIC
    assert shares[1].ceil_bytes_per_s == NIC


def test_a_floor_is_no_burden_for_a_slow_receiver() -> None:
    slow = {**paths(2), 1: NIC / 10}
    shares = shares_of(NIC, slow, given(NIC, 0.0))
    assert shares[1].rate_bytes_per_s == pytest.approx(0.002 * NIC)


def test_a_flow_sends_no_faster_than_its_receiver_takes() -> None:
    shares = shares_of(NIC, {0: NIC / 5}, {})
    assert shares[0].ceil_bytes_per_s == NIC / 5


def test_idle_flows_may_begin_at_once_at_full_speed() -> None:
    shares = shares_of(NIC, paths(20), {})
    assert all(share.ceil_bytes_per_s == NIC for share in shares.values())
    assert sum(share.rate_bytes_per_s for share in shares.values()) <= 0.05 * NIC * (1 + 1e-9)


def test_small_changes_are_not_told() -> None:
    port = Port(NIC, paths(3))
    assert len(port.change(given(NIC / 3, NIC / 3, NIC / 3))) == 3
    assert port.change(given(NIC / 3, NIC / 3, NIC / 3)) == {}
    assert port.change(given(NIC / 3.02, NIC / 3, NIC / 2.98)) == {}
    assert set(port.change(given(NIC / 8, NIC / 3, NIC * 13 / 24))) == {0, 2}


def test_a_new_flow_is_told_at_once_and_others_only_if_theirs_change() -> None:
    port = Port(NIC, paths(2))
    port.change(given(NIC / 4, NIC / 4))
    port.paths[2] = NIC
    assert set(port.change(given(NIC / 4, NIC / 4))) == {2}


def test_slow_cards_keep_more_for_all_others() -> None:
    assert default_rate(125e6) == pytest.approx(2.5e6)
    assert default_rate(12.5e6) == pytest.approx(1e6)
    assert default_rate(1.25e6) == pytest.approx(0.125e6)


@pytest.mark.slow
def test_flows_get_fair_shares_of_all_cards() -> None:
    """Two fast machines and a slow one: those who pass a full card share it by what they carry."""
    nics = np.array([5.0, 5.0, 1.0])
    ends = {0: (0, 2), 1: (1, 2), 2: (0, 1)}
    volumes = {0: 1.0, 1: 3.0, 2: 1.0}
    kind = int(EdgeKind.GRAPH)
    flows = [Flow(*ends[n], 0, n, kind, 0, volumes[n], volumes[n], 0.0) for n in ends]
    fair = Rates(FAIR, nics, nics, 1.0)
    assert fair.of(flows) == pytest.approx({0: 0.25, 1: 0.75, 2: 4.75})
    assert fair.of([]) == {}


def test_a_flow_gets_no_more_than_it_may() -> None:
    shares = shares_of(NIC, paths(2), given(0.0, 0.0), {0: NIC / 3})
    assert shares[0].ceil_bytes_per_s == pytest.approx(NIC / 3)
    assert shares[1].ceil_bytes_per_s == NIC
