"""From what agents report to what they are told."""

from __future__ import annotations

from collections import defaultdict

import pytest

from headrace.api.plan import plan
from headrace.core.cluster import Cluster
from headrace.core.job import Job, Sync
from headrace.core.placement import PlacementFile
from headrace.core.plan import Plan
from headrace.core.tasks import EdgeKind
from headrace.runtime.traffic.flows import Flows, role_of
from headrace.runtime.traffic.messages import AgentReport, Message
from headrace.runtime.traffic.policy_rates import prio_of
from headrace.runtime.traffic.rate_allocation import RateAllocator

NIC = 125e6
HOSTS = {"m0": "10.0.0.1", "m1": "10.0.0.2"}


def make(policy: str, sync: Sync = Sync.RING) -> Plan:
    machines = [{"name": name, "nic": "1Gbps", "resources": {"cpu": 8}} for name in HOSTS]
    cluster = Cluster.model_validate({"version": 1, "machines": machines})
    job = Job(trainers=2, samplers_per_trainer=1, batch_size=8, sync=sync, model_bytes=4e6)
    made = plan(cluster, job, method="colocate", policy=policy)
    placement = PlacementFile(
        samplers=("m0", "m1"), trainers=("m0", "m1"), servers=("m0",) * job.num_servers
    )
    return made.model_copy(update={"placement": placement})


class Agents:
    """Hears what agents are told, and speaks for them."""

    def __init__(self, policy: str) -> None:
        self.told: dict[str, list[Message]] = defaultdict(list)
        self.decider = RateAllocator(
            make(policy), lambda machine, said: self.told[machine].append(said)
        )
        for machine in HOSTS:
            self.report(machine, {"nic_out": NIC}, 0.0)

    def report(self, machine: str, message: Message, now_s: float) -> None:
        self.decider.update(machine, AgentReport.model_validate(message), now_s)

    def connect(self, server: str, there: str, client: str, here: str, port: int) -> None:
        """A task on `here` has connected to one on `there`."""
        listens, connects = (HOSTS[there], 7000), (HOSTS[here], port)
        self.report(there, {"ends": [[server, *listens, *connects]]}, 0.0)
        self.report(here, {"ends": [[client, *connects, *listens]]}, 0.0)

    def shares(self, machine: str) -> dict[int, tuple[int, int]]:
        """What was told last: rate and ceil of every flow."""
        return {
            number: (rate, ceil)
            for said in self.told[machine]
            for number, rate, ceil, _ in said.get("shares", ())
        }


def test_bulk_flows_get_classes_and_requests_do_not() -> None:
    agents = Agents("priority")
    agents.connect("store0", "m0", "sampler1.0", "m1", 40000)
    assert agents.told["m0"] == [{"add": [(0, 2, 7000, "10.0.0.2", 40000)]}]
    assert agents.told["m1"] == []
    agents.connect("trainer0", "m0", "trainer1", "m1", 40001)
    assert agents.told["m0"][-1] == {"add": [(2, 0, 7000, "10.0.0.2", 40001)]}
    assert agents.told["m1"] == [{"add": [(1, 0, 40001, "10.0.0.1", 7000)]}]


def test_gradients_go_before_graph_data_by_the_kernels_classes() -> None:
    agents = Agents("priority")
    agents.connect("store0", "m0", "sampler1.0", "m1", 40000)
    agents.connect("trainer0", "m0", "trainer1", "m1", 40001)
    agents.report("m0", {"open": [[0, 1000], [2, 1000]]}, 1.0)
    agents.decider.decide(1.0)
    shares = agents.shares("m0")
    assert list(shares[2]) == list(shares[0]) == pytest.approx([0.02 * NIC, NIC], rel=0.01)
    before = len(agents.told["m0"])
    agents.report("m0", {"open": [[0, 2000]]}, 1.1)
    agents.decider.decide(1.1)
    assert len(agents.told["m0"]) == before


def test_flows_get_shares_of_the_receivers_card_by_volume_but_no_less_than_equal_ones() -> None:
    agents = Agents("priority")
    agents.connect("store0", "m0", "sampler1.0", "m1", 40000)
    agents.connect("store0", "m0", "trainer1", "m1", 40001)
    agents.report("m0", {"open": [[0, 1000], [1, 1000]]}, 1.0)
    agents.decider.decide(1.0)
    first, second = (agents.shares("m0")[number][1] for number in (0, 1))
    flows = Flows(make("priority"))
    volumes = [
        flow.volume_bytes
        for task in ("sampler1.0", "trainer1")
        if (flow := flows.find("store0", task)) is not None
    ]
    # A plan may expect too little of the smaller flow, which must not delay the larger one.
    expected = [max(volume / sum(volumes), 0.5) * NIC for volume in volumes]
    assert [first, second] == pytest.approx(expected, rel=0.01)
    assert max(expected) > 0.6 * NIC
    # Who has ended keeps its share for a while, as it will come again.
    agents.report("m0", {"open": [[0, 2000]]}, 2.0)
    agents.decider.decide(2.0)
    assert agents.shares("m0")[0][1] == first
    assert agents.decider.is_dirty
    agents.decider.decide(4.0)
    assert agents.shares("m0")[0][1] == NIC
    assert not agents.decider.is_dirty


def test_a_card_that_has_become_slower_is_shared_anew() -> None:
    agents = Agents("paced")
    agents.connect("store0", "m0", "sampler1.0", "m1", 40000)
    agents.decider.decide(0.0)
    assert agents.shares("m0")[0][1] == NIC
    agents.report("m0", {"nic": NIC / 2}, 1.0)
    assert agents.decider.is_dirty
    agents.decider.decide(0.0)
    assert agents.shares("m0")[0][1] == NIC / 2


def test_nothing_is_told_while_nothing_changes() -> None:
    agents = Agents("paced")
    agents.connect("store0", "m0", "sampler1.0", "m1", 40000)
    agents.report("m0", {"open": [[0, 1000]]}, 1.0)
    agents.decider.decide(0.0)
    before = len(agents.told["m0"])
    agents.report("m0", {"open": [[0, 2000]]}, 1.1)
    assert agents.decider.is_dirty
    agents.decider.decide(0.0)
    assert len(agents.told["m0"]) == before


def test_an_agent_that_is_started_again_hears_all_anew() -> None:
    agents = Agents("priority")
    agents.connect("store0", "m0", "sampler1.0", "m1", 40000)
    added = agents.told["m0"][0]
    agents.report("m0", {"nic_out": NIC}, 2.0)
    agents.report("m0", {"ends": [["store0", HOSTS["m0"], 7000, HOSTS["m1"], 40000]]}, 2.0)
    assert agents.told["m0"][-1] == added


def test_a_connection_that_ends_loses_its_filter() -> None:
    agents = Agents("priority")
    agents.connect("store0", "m0", "sampler1.0", "m1", 40000)
    gone = [["sampler1.0", HOSTS["m1"], 40000, HOSTS["m0"], 7000]]
    agents.report("m1", {"gone": gone}, 2.0)
    assert agents.told["m0"][-1] == {"remove": [(7000, "10.0.0.2", 40000)]}


@pytest.mark.parametrize("sync", list(Sync))
def test_flows_carry_what_the_plan_expects(sync: Sync) -> None:
    made = make("priority", sync)
    flows = Flows(made)
    graph = flows.find("store0", "sampler1.0")
    assert graph is not None
    assert (graph.kind, graph.src_machine, graph.dst_machine) == (EdgeKind.GRAPH, 0, 1)
    assert graph.volume_bytes > 0
    assert flows.find("store1", "sampler1.0") is None
    assert flows.find("sampler1.0", "store0") is None
    if sync is Sync.PS:
        gradients = flows.find("trainer1", "ps0")
        assert gradients is not None
        assert gradients.volume_bytes == made.job.model_bytes
    else:
        ring = flows.find("trainer0", "trainer1")
        assert ring is not None
        # Each trainer sends the model once: half of it in each of two steps.
        assert ring.volume_bytes == pytest.approx(made.job.model_bytes)


def test_only_the_strict_policy_knows_classes() -> None:
    assert {prio_of("paced", kind) for kind in EdgeKind} == {1}
    assert prio_of("priority", EdgeKind.RING) < prio_of("priority", EdgeKind.BATCH)
    assert prio_of("priority", EdgeKind.BATCH) < prio_of("priority", EdgeKind.GRAPH)


def test_roles_are_in_names() -> None:
    assert [role_of(name) for name in ("store3", "sampler1.0", "ps0")] == ["store", "sampler", "ps"]


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        ("m7", {"nic_out": NIC}),
        ("m2", {"nic": NIC}),
        ("m2", {"ends": [["store0", HOSTS["m0"], 7000, HOSTS["m1"], 40000]]}),
        ("m0", {"open": [[99, 1.0]], "nic": NIC / 2}),
    ],
)
def test_a_message_that_does_not_fit_changes_nothing(machine: str, message: Message) -> None:
    agents = Agents("priority")
    agents.connect("store0", "m0", "sampler1.0", "m1", 40000)
    agents.decider._names.append("m2")
    told, before = dict(agents.told), agents.decider._ports["m0"].nic_bytes_per_s
    with pytest.raises(ValueError, match=r"has not sent|does not exist|not in list"):
        agents.report(machine, message, 1.0)
    agents.decider.decide(1.0)
    assert dict(agents.told) == told
    assert agents.decider._ports["m0"].nic_bytes_per_s == before


@pytest.mark.parametrize(
    "message",
    [
        {"nic_out": -1.0},
        {"nic_out": float("nan")},
        {"nic": 10**400},
        {"open": [[-1, 0.0]]},
        {"open": [0]},
        {"at": {"sampler0.0": 1.5}},
        {"used": [1]},
        {"used": {"cpu_s": "much"}},
        {"gone": [["store0", "10.0.0.1", "7000", "10.0.0.2", 1]]},
        {"ends": [["store0", "10.0.0.1", 7000]]},
        {"ends": "store0"},
        {"else": 1},
    ],
)
def test_invalid_messages_are_no_reports(message: Message) -> None:
    with pytest.raises(ValueError, match="AgentReport"):
        AgentReport.model_validate(message)
