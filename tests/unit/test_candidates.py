"""Which addresses of a host are tried: those that could lead to it, as NCCL and gloo would take them."""

from __future__ import annotations

import pytest

from tui.fleet.candidates import MAX_CANDIDATES, Described, Interface, candidates
from tui.fleet.errors import UsageError


def interface(name: str, address: str, kind: str = "ethernet", *, up: bool = True) -> Interface:
    """An address as the agent tells it."""
    return Interface(name, address, 6 if ":" in address else 4, 24, up, kind)


def tried(*interfaces: Interface, configured: str = "", peer_address: str | None = None) -> list[str]:
    """The addresses, in order, of a host whose default route goes by eth0."""
    found = Described(interfaces, (32768, 60999), "eth0")
    return [each.address for each in candidates("a", found, configured, peer_address)]


ETH0, ETH1 = interface("eth0", "203.0.113.7"), interface("eth1", "10.0.0.5")
DOCKER = interface("docker0", "172.17.0.1", "bridge")


def test_all_that_are_up_but_no_bridges() -> None:
    down = interface("eth2", "10.0.9.5", up=False)
    assert tried(DOCKER, ETH1, ETH0, down) == ["203.0.113.7", "10.0.0.5"]
    assert tried(DOCKER) == ["172.17.0.1"], "nothing else is there"
    assert tried() == []


def test_a_bridge_by_which_the_machine_goes_out_is_a_card_like_others() -> None:
    assert tried(interface("eth0", "10.0.0.5", "bridge"), ETH1, DOCKER) == ["10.0.0.5", "10.0.0.5"]


def test_one_address_of_an_interface_and_ipv4_first() -> None:
    six, second = interface("eth1", "2001:db8::5"), interface("eth1", "10.0.0.6")
    assert tried(six, ETH1, second) == ["10.0.0.5"]
    assert tried(six) == ["2001:db8::5"]


def test_link_local_addresses_only_when_they_are_wanted() -> None:
    local, six = interface("eth1", "169.254.3.4"), interface("eth1", "fe80::1")
    assert tried(ETH0, local, six) == ["203.0.113.7"]
    assert tried(ETH0, local, six, configured="eth1") == ["169.254.3.4"]


def test_what_is_configured_is_the_only_one() -> None:
    assert tried(ETH0, ETH1, DOCKER, configured="docker0") == ["172.17.0.1"]
    assert tried(ETH0, ETH1, peer_address="10.0.0.5") == ["10.0.0.5"]
    assert tried(ETH0, ETH1, peer_address="192.0.2.9") == ["203.0.113.7", "10.0.0.5"], "a mapped one"
    found = Described((ETH0, ETH1), (1, 2), "eth0")
    assert [each.configured for each in candidates("a", found, "eth1", None)] == [True]
    with pytest.raises(UsageError, match="no network interface ib0") as caught:
        candidates("a", found, "ib0", None)
    assert "a has: eth0 (203.0.113.7), eth1 (10.0.0.5)." in caught.value.hint


def test_there_are_not_too_many() -> None:
    cards = [interface(f"ib{number}", f"10.1.{number}.5", "infiniband") for number in range(20)]
    assert tried(*cards, ETH0)[0] == "203.0.113.7"
    assert len(tried(*cards, ETH0)) == MAX_CANDIDATES
