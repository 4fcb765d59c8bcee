from __future__ import annotations

from typing import Any

import pytest

from headrace.core.errors import MissingExtraError
from headrace.linux import htb


class Message(dict[str, Any]):
    """As pyroute2 gives them."""

    def get_attr(self, name: str) -> Any:
        return self["attrs"].get(name)


def shown(handle: int, parent: int, rate: int, rate64: int | None = None) -> Message:
    values = {"rate": rate, "ceil": rate, "prio": 0, "quantum": 9_000}
    attrs = {"TCA_HTB_PARMS": values, "TCA_HTB_RATE64": rate64, "TCA_HTB_CEIL64": rate64}
    options = Message(attrs=attrs)
    return Message(index=7, handle=handle, parent=parent, attrs={"TCA_OPTIONS": options})


class Kernel:
    """Notes what it is told; has no queue that it is said to lack."""

    def __init__(self, *lacks: str, classes: tuple[Message, ...] = ()) -> None:
        self.lacks = lacks
        self.classes = classes
        self.told: list[tuple[str, str | None, int | None, dict[str, Any]]] = []

    def tc(
        self,
        command: str,
        kind: str | None = None,
        index: int | None = None,
        handle: int | None = None,
        **options: Any,
    ) -> Any:
        from pyroute2 import NetlinkError

        if kind in self.lacks or command == "del":
            raise NetlinkError(2, "no such thing")
        assert index == 7
        if command == "get-class":
            return [*self.classes, Message(index=8)]
        self.told.append((command, kind, handle, options))

    def link_lookup(self, *, ifname: str) -> list[int]:
        return [7] if ifname == "eth0" else []


def test_a_tree_has_a_trunk_and_a_place_for_everything() -> None:
    kernel = Kernel("fq_codel")
    htb.apply(kernel, 7, htb.plain_tree(50e6))
    commands = [(command, kind, handle) for command, kind, handle, _ in kernel.told]
    assert commands == [
        ("add", "htb", htb.ROOT),
        ("add-class", "htb", htb.TRUNK),
        ("add-class", "htb", htb.DEFAULT),
        ("add", "bfifo", 0x20000),
    ]
    root, trunk, default, queue = (options for *_, options in kernel.told)
    assert root == {"default": 2}
    assert (trunk["parent"], default["parent"]) == (htb.ROOT, htb.TRUNK)
    assert trunk["rate"] == trunk["ceil"] == default["rate"] == htb.to_kernel(50e6)
    assert trunk["quantum"] == htb.QUANTUM_BYTES
    assert queue == {"parent": htb.DEFAULT, "limit": htb.queue_bytes(50e6)}


def test_flows_queue_fairly_where_the_kernel_can() -> None:
    kernel = Kernel()
    htb.add(kernel, 7, htb.HtbClass(0x10010, htb.TRUNK, 1e6, 2e6))
    assert kernel.told[-1] == ("add", "fq_codel", 0x100000, {"parent": 0x10010})


def test_changing_leaves_the_queue_alone() -> None:
    kernel = Kernel()
    htb.change(kernel, 7, htb.HtbClass(0x10010, htb.TRUNK, 1e6, 2e6, prio=3, quantum_bytes=9_000))
    [(command, kind, handle, options)] = kernel.told
    assert (command, kind, handle) == ("change-class", "htb", 0x10010)
    assert (options["rate"], options["ceil"]) == (htb.to_kernel(1e6), htb.to_kernel(2e6))
    assert (options["prio"], options["quantum"]) == (3, 9_000)


def test_a_slower_card_leaves_everyone_their_share() -> None:
    flow = shown(0x10010, htb.TRUNK, htb.to_kernel(2e6))
    kernel = Kernel(classes=(flow, shown(htb.TRUNK, 0xFFFFFFFF, htb.to_kernel(8e6))))
    htb.scale(kernel, 7, 4e6)
    told = [(command, handle, options) for command, _, handle, options in kernel.told]
    assert [(command, handle) for command, handle, _ in told] == [
        ("change-class", htb.TRUNK),
        ("change-class", 0x10010),
        ("change", 0x100000),
    ]
    rates = [options["rate"] for *_, options in told[:2]]
    assert rates == [pytest.approx(htb.to_kernel(rate), abs=1) for rate in (4e6, 1e6)]
    assert told[1][2]["quantum"] == 9_000
    assert told[2][2] == {"parent": 0x10010, "limit": htb.queue_bytes(1e6)}


def test_the_kernel_counts_headers() -> None:
    assert htb.to_kernel(1448) == 1514
    assert htb.from_kernel(1514) == pytest.approx(1448)


def test_only_a_tree_can_be_changed() -> None:
    with pytest.raises(LookupError):
        htb.scale(Kernel(), 7, 4e6)


def test_very_fast_cards_are_read_in_full() -> None:
    kernel = Kernel(classes=(shown(htb.TRUNK, 0xFFFFFFFF, 0xFFFFFFFF, 6_250_000_000),))
    [trunk] = htb.classes_of(kernel, 7)
    assert (trunk.parent, trunk.rate_bytes_per_s) == (htb.ROOT, htb.from_kernel(6.25e9))


def test_a_class_can_be_removed() -> None:
    kernel = Kernel()
    htb.remove(kernel, 7, 0x10010)
    assert kernel.told == [("del-class", "htb", 0x10010, {})]


def test_rates_are_never_nothing() -> None:
    kernel = Kernel()
    htb.change(kernel, 7, htb.HtbClass(0x10010, htb.TRUNK, 0.0, 0.2))
    assert kernel.told[0][3]["rate"] == kernel.told[0][3]["ceil"] == 1


@pytest.mark.parametrize("rate", [1e3, 12.5e6, 125e6, 6.25e9])
def test_bursts_and_queues_hold_the_largest_packet(rate: float) -> None:
    assert htb.burst_bytes(rate) >= 65_536
    assert htb.queue_bytes(rate) >= 2 * 65_536


def test_bulk_flows_do_not_make_others_wait_long() -> None:
    assert htb.queue_bytes(12.5e6) / 12.5e6 <= 0.05


def test_interfaces_have_names() -> None:
    assert htb.number_of(Kernel(), "eth0") == 7
    with pytest.raises(LookupError, match="eth1"):
        htb.number_of(Kernel(), "eth1")


def test_without_pyroute2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"headrace\[shape\]"), htb.open_route("x"):
        pass
