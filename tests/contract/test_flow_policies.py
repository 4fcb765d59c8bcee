"""What every flow policy promises; a new one joins by being in FLOW_POLICIES."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.flow import FLOW_POLICIES, Flow, FlowPolicy
from tests.oracle.flows import OpenSet, random_open_set
from tests.oracle.policies import POLICIES, capacities
from tests.support.examples import examples as more_examples

EPS = 1e-9
WORK_CONSERVING = ("maxmin", "priority", "paced", "matching", "mrtf", "omcoflow")

open_sets = st.builds(
    lambda seed, symmetric: random_open_set(seed, symmetric=symmetric),
    st.integers(0, 2**31),
    st.booleans(),
)
examples = more_examples(25, 400)


@pytest.fixture(params=FLOW_POLICIES, scope="module")
def policy(request: pytest.FixtureRequest) -> FlowPolicy:
    return FLOW_POLICIES[request.param]


def rates_of(policy: FlowPolicy, open_set: OpenSet) -> np.ndarray:
    return policy.rates(open_set.flows, open_set.nic_out, open_set.nic_in, open_set.pace_s)


def test_registered_under_its_name(policy: FlowPolicy) -> None:
    assert FLOW_POLICIES[policy.name] is policy
    assert sum(other.code == policy.code for other in FLOW_POLICIES.values()) == 1
    assert policy.rule


@examples
@given(open_set=open_sets)
def test_rates_are_finite_and_not_negative(policy: FlowPolicy, open_set: OpenSet) -> None:
    rates = rates_of(policy, open_set)
    assert rates.shape == (len(open_set.flows),)
    assert np.isfinite(rates).all()
    assert (rates >= 0).all()


@examples
@given(open_set=open_sets)
def test_no_port_is_above_capacity(policy: FlowPolicy, open_set: OpenSet) -> None:
    use_out, use_in = open_set.port_use(rates_of(policy, open_set))
    assert (use_out <= open_set.nic_out * (1 + EPS)).all()
    assert (use_in <= open_set.nic_in * (1 + EPS)).all()


@examples
@given(open_set=open_sets)
def test_some_flow_always_moves(policy: FlowPolicy, open_set: OpenSet) -> None:
    # Rounding may leave a flow a trickle; a real rate is a share of some port.
    assert rates_of(policy, open_set).max() > 1e-3 * min(
        open_set.nic_out.min(), open_set.nic_in.min()
    )


@examples
@given(open_set=open_sets)
def test_same_flows_same_rates(policy: FlowPolicy, open_set: OpenSet) -> None:
    assert np.array_equal(rates_of(policy, open_set), rates_of(policy, open_set))


@examples
@given(open_set=open_sets, order_seed=st.integers(0, 1000))
def test_order_of_the_list_does_not_matter(
    policy: FlowPolicy, open_set: OpenSet, order_seed: int
) -> None:
    order = np.random.default_rng(order_seed).permutation(len(open_set.flows))
    shuffled = replace(open_set, flows=[open_set.flows[i] for i in order])
    rates = rates_of(policy, open_set)
    assert np.allclose(rates_of(policy, shuffled), rates[order], rtol=1e-12, atol=0)


@examples
@given(open_set=open_sets)
def test_nics_are_only_read(policy: FlowPolicy, open_set: OpenSet) -> None:
    nic_out, nic_in = open_set.nic_out.copy(), open_set.nic_in.copy()
    rates_of(policy, open_set)
    assert np.array_equal(nic_out, open_set.nic_out)
    assert np.array_equal(nic_in, open_set.nic_in)


def test_no_flows_no_rates(policy: FlowPolicy) -> None:
    assert policy.rates([], np.ones(3), np.ones(3)).shape == (0,)


def test_a_lone_flow_gets_its_slower_port(policy: FlowPolicy) -> None:
    flow = Flow(0, 1, task=5, edge=7, kind=0, iteration=2, volume=9.0, remaining=4.0, opened=1.0)
    rates = policy.rates([flow], np.array([3.0, 8.0]), np.array([8.0, 2.0]))
    assert rates == pytest.approx([2.0], rel=1e-12)


@examples
@given(open_set=open_sets)
def test_agrees_with_the_plain_rule(policy: FlowPolicy, open_set: OpenSet) -> None:
    ports = capacities(list(open_set.nic_out), list(open_set.nic_in))
    for pace_s in (open_set.pace_s, np.inf):
        wanted = POLICIES[policy.name](open_set.twins(), ports, pace_s)
        found = rates_of(policy, replace(open_set, pace_s=pace_s))
        assert np.allclose(
            found,
            [wanted[flow.edge] for flow in open_set.flows],
            rtol=EPS,
            atol=EPS * min(ports.values()),
        )


@pytest.mark.parametrize("name", WORK_CONSERVING)
@examples
@given(open_set=open_sets)
def test_every_flow_has_a_full_port(name: str, open_set: OpenSet) -> None:
    use_out, use_in = open_set.port_use(rates_of(FLOW_POLICIES[name], open_set))
    full_out = use_out >= open_set.nic_out * (1 - EPS)
    full_in = use_in >= open_set.nic_in * (1 - EPS)
    assert all(full_out[flow.src] or full_in[flow.dst] for flow in open_set.flows)


@examples
@given(open_set=open_sets)
def test_maxmin_is_fair(open_set: OpenSet) -> None:
    # A rate is max-min fair exactly if some full port of the flow serves no faster flow.
    rates = rates_of(FLOW_POLICIES["maxmin"], open_set)
    use_out, use_in = open_set.port_use(rates)
    for flow, rate in zip(open_set.flows, rates, strict=True):
        pairs = list(zip(open_set.flows, rates, strict=True))
        is_fastest_out = all(r <= rate * (1 + EPS) for f, r in pairs if f.src == flow.src)
        is_fastest_in = all(r <= rate * (1 + EPS) for f, r in pairs if f.dst == flow.dst)
        full_out = use_out[flow.src] >= open_set.nic_out[flow.src] * (1 - EPS)
        full_in = use_in[flow.dst] >= open_set.nic_in[flow.dst] * (1 - EPS)
        assert (full_out and is_fastest_out) or (full_in and is_fastest_in)


@examples
@given(open_set=open_sets)
def test_paced_without_a_pace_is_maxmin(open_set: OpenSet) -> None:
    unpaced = replace(open_set, pace_s=np.inf)
    maxmin = rates_of(FLOW_POLICIES["maxmin"], unpaced)
    assert np.allclose(rates_of(FLOW_POLICIES["paced"], unpaced), maxmin, rtol=EPS, atol=0)


@examples
@given(open_set=open_sets)
def test_nobody_gives_the_slowest_flow_more_than_maxmin(
    policy: FlowPolicy, open_set: OpenSet
) -> None:
    slowest = rates_of(FLOW_POLICIES["maxmin"], open_set).min()
    assert rates_of(policy, open_set).min() <= slowest * (1 + EPS)
