"""From nodes of a Ray cluster to a cluster file, without Ray."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from headrace.api.documents.load import load_cluster
from headrace.core.errors import SpecError
from headrace.runtime.cluster.bandwidth_probe import NicCounter, peaks_of, rate_of
from headrace.runtime.cluster.cluster_file import (
    Bandwidth,
    DiscoveredNode,
    cluster_of,
    cluster_text,
    in_order,
    names_of,
    tournament,
)

XEON = "Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz"


def node(name: str, address: str = "10.0.0.1", **facts: object) -> DiscoveredNode:
    """A node with 16 CPUs."""
    known: dict[str, object] = {"resources": {"CPU": 16.0}, "cpu_model": XEON, "num_cores": 16}
    return DiscoveredNode(name, name, address, **(known | facts))  # type: ignore[arg-type]


@pytest.mark.parametrize("num_players", [0, 1, 2, 3, 4, 7, 16])
def test_everybody_meets_everybody_once(num_players: int) -> None:
    rounds = list(tournament(num_players))
    met = [tuple(sorted(pair)) for pairs in rounds for pair in pairs]
    assert sorted(met) == list(combinations(range(num_players), 2))
    for pairs in rounds:
        busy = [player for pair in pairs for player in pair]
        assert len(busy) == len(set(busy))


def test_a_long_tournament_is_cut_short() -> None:
    assert [len(pairs) for pairs in tournament(100, max_rounds=3)] == [50, 50, 50]


def test_names_come_from_labels_then_hosts_then_addresses() -> None:
    nodes = [
        node("h", "10.0.0.1", host_label="m0"),
        node("h", "10.0.0.2"),
        node("same", "10.0.0.3"),
        node("same", "10.0.0.4"),
    ]
    assert names_of(nodes) == ["m0", "h", "same-10.0.0.3", "same-10.0.0.4"]


def test_numbers_in_names_are_in_order() -> None:
    nodes = [node(name) for name in ("m10", "a", "m2", "m1")]
    assert [each.hostname for each in in_order(nodes)] == ["a", "m1", "m2", "m10"]


def test_same_hardware_is_one_class() -> None:
    plain, other = node("a"), node("b", num_cores=32)
    gpu = node("c", gpu_model="NVIDIA A100-SXM4-40GB", resources={"CPU": 16.0, "GPU": 2.0})
    unused = node("d", gpu_model="NVIDIA A100-SXM4-40GB")
    assert plain.kind == unused.kind == "intel-xeon-gold-6230-16c"
    assert other.kind == "intel-xeon-gold-6230-32c"
    assert gpu.kind == "intel-xeon-gold-6230-16c-a100-sxm4-40gb"


def test_a_node_without_cpus_cannot_work() -> None:
    assert not node("head", resources={"memory": 1e9}).can_work
    assert node("worker").can_work


def test_the_file_is_what_the_loader_reads(tmp_path: Path) -> None:
    resources = {
        "CPU": 16.0,
        "GPU": 2.0,
        "memory": 48 * 2.0**30 + 5,
        "object_store_memory": 1e9,
        "node:10.0.0.1": 1.0,
        "node:__internal_head__": 1.0,
        "accelerator_type:T4": 1.0,
        "CPU_group_0_abc": 4.0,
        "bundle_group_abc": 1000.0,
        "disk": 2.5,
    }
    nodes = [
        node("m0", "10.0.0.1", resources=resources),
        node("m1", "10.0.0.2", resources={"CPU": 8.0, "memory": 2500 * 2.0**20 + 7}),
    ]
    cluster = cluster_of(nodes, [Bandwidth(1.17654e9, 1.2e9), Bandwidth(12.0123e6, 12e6)])
    text = cluster_text(cluster, ("found", "bandwidth: measured"))
    assert text.startswith("# found\n# bandwidth: measured\nversion: 1\n")
    for part in ("memory: 48GiB", "memory: 2500MiB", "nic_in: 9.41Gbps", "nic_out: 96Mbps"):
        assert part in text
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    loaded = load_cluster(path)
    assert loaded == cluster
    first = loaded.machines[0]
    assert first.resources == {"cpu": 16, "gpu": 2, "memory": 48 * 2.0**30, "disk": 2.5}
    assert first.labels == {"address": "10.0.0.1"}


def test_no_machine_at_all() -> None:
    with pytest.raises(SpecError, match="--num-cpus"):
        cluster_of([], [])


def test_a_rate_does_not_count_what_was_on_its_way() -> None:
    assert rate_of([(2.0, 100), (1.0, 999), (3.0, 100)]) == 100
    assert rate_of([]) == rate_of([(1.0, 5)]) == rate_of([(1.0, 5), (1.0, 5)]) == 0


def test_a_peak_is_over_a_while() -> None:
    # A burst of a tenth of a second does not count for more than what it adds to 0.4 s.
    seen = [(0.1 * n, 100 * n + 1000 * (n > 5), 10 * n) for n in range(20)]
    most_in, most_out = peaks_of(seen)
    assert most_in == pytest.approx((400 + 1000) / 0.4)
    assert most_out == pytest.approx(100)
    assert peaks_of(seen[:3]) == (0.0, 0.0)
    assert peaks_of([]) == (0.0, 0.0)


def test_cards_are_counted_until_somebody_asks() -> None:
    assert min(NicCounter("127.0.0.1").peaks()) >= 0.0
    assert NicCounter("203.0.113.9").peaks() == (0.0, 0.0)
