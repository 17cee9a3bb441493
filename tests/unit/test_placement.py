"""Where ranks meet: which address of each host, in which order, and the refusal when there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import pytest

from tui.fleet.apart import HostsApart
from tui.fleet.errors import EncampError, UsageError
from tui.fleet.matrix import Candidate, HostNetwork, Matrix, Probe
from tui.fleet.placement import Rendezvous, choose, rendezvous

Reach = Callable[[str, str, Candidate], "str | Probe"]
KERNEL = (32768, 60999)


def candidate(interface: str, address: str, **fields: object) -> Candidate:
    """An address of an Ethernet card, not the default route's, unless `fields` say otherwise."""
    values = {"prefix": 24, "kind": "ethernet", "mbit": 1000, "default": False, "configured": False, **fields}
    return Candidate(interface, address, **values)  # type: ignore[arg-type]


def host(name: str, *candidates: Candidate, **fields: object) -> HostNetwork:
    """A machine of its own."""
    values = {"host_id": f"id-{name}", "boot_id": f"boot-{name}", "local_ports": KERNEL, **fields}
    return HostNetwork(name, candidates=candidates, **values)  # type: ignore[arg-type]


def all_well(source: str, target: str, candidate: Candidate) -> str:
    """Everybody is reached."""
    return ""


def matrix(*hosts: HostNetwork, reach: Reach = all_well, met: Iterable[Probe] = ()) -> Matrix:
    """What is found when `reach` says for each pair what is wrong with it."""
    probes = []
    for source in hosts:
        for target in hosts:
            for each in target.candidates if source is not target else ():
                said = reach(source.name, target.name, each)
                if isinstance(said, str):
                    said = Probe(
                        source.name, target.name, each.interface, each.address, 40000, not said, said, 0.2
                    )
                probes.append(said)
    return Matrix(hosts, tuple(probes), tuple(met))


def pairs(found: Matrix) -> list[tuple[str, str, str]]:
    """Name, interface and address of the nodes that are chosen."""
    return [(node.name, node.interface, node.address) for node in choose(found)]


def test_hosts_keep_their_order_unless_one_is_to_lead() -> None:
    found = matrix(
        *(host(name, candidate("eth0", f"10.0.0.{number}")) for number, name in enumerate("cab", 1))
    )
    assert pairs(found) == [("c", "eth0", "10.0.0.1"), ("a", "eth0", "10.0.0.2"), ("b", "eth0", "10.0.0.3")]
    assert [node.name for node in choose(found, rendezvous_host="b")] == ["b", "c", "a"]
    assert choose(found)[0].host_id == "id-c"
    with pytest.raises(UsageError, match="d is none of the hosts of this launch: c, a, b"):
        choose(found, rendezvous_host="d")


def test_the_route_to_the_peers_counts_more_than_the_default_route() -> None:
    """Public addresses answer as well, and even faster, but the hosts share a network of their own."""
    found = matrix(
        host("a", candidate("eth0", "203.0.113.7", default=True, mbit=10000), candidate("eth1", "10.0.0.1")),
        host("b", candidate("eth0", "198.51.100.9", default=True, mbit=10000), candidate("ens3", "10.0.0.2")),
    )
    assert pairs(found) == [("a", "eth1", "10.0.0.1"), ("b", "ens3", "10.0.0.2")]


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        (candidate("x", "10.1.0.1", mbit=100000), candidate("y", "10.2.0.1", configured=True, mbit=10)),
        (candidate("x", "172.30.0.1", mbit=100000), candidate("y", "10.0.0.1", mbit=10)),
        (candidate("x", "8.8.8.8", mbit=100000), candidate("y", "10.2.0.1", mbit=10)),
        (candidate("x", "10.1.0.1", mbit=1000), candidate("y", "10.2.0.1", mbit=25000)),
        (candidate("x", "10.1.0.1", mbit=None), candidate("y", "10.2.0.1", mbit=1000)),
        (candidate("x", "10.1.0.1", default=True), candidate("y", "10.2.0.1")),
        (candidate("y", "10.2.0.1"), candidate("x", "10.1.0.1")),
    ],
    ids=["configured", "same network", "private", "faster", "known speed", "not the default route", "name"],
)
def test_preferences(worse: Candidate, better: Candidate) -> None:
    for both in ((worse, better), (better, worse)):
        found = matrix(host("a", *both), host("b", candidate("eth0", "10.0.0.2")))
        assert choose(found)[0].address == better.address


def test_what_was_measured_counts_more_than_what_a_card_says_and_near_is_better_than_far() -> None:
    said = (candidate("x", "10.1.0.1", mbit=100000), candidate("y", "10.2.0.1", mbit=1000))

    def throughput(source: str, target: str, each: Candidate) -> Probe:
        mbit = 80.0 if each.interface == "x" and source == "b" else 900.0
        return Probe(source, target, each.interface, each.address, 1, True, "", 0.2, mbit)

    others = [host(name, candidate("eth0", f"10.0.0.{number}")) for number, name in enumerate("bc", 2)]
    assert choose(matrix(host("a", *said), *others, reach=throughput))[0].interface == "y"

    def distance(source: str, target: str, each: Candidate) -> Probe:
        rtt = 30.0 if each.interface == "x" and source == "c" else 0.3
        return Probe(source, target, each.interface, each.address, 1, True, "", rtt)

    same = tuple(dataclasses.replace(each, mbit=1000) for each in said)
    assert choose(matrix(host("a", *same), *others, reach=distance))[0].interface == "y"


def test_an_address_that_both_hosts_have_is_no_common_network() -> None:
    """Docker's own addresses are the same everywhere; that the VPN is common counts."""
    docker = candidate("eth0", "172.17.0.2", prefix=16, default=True)

    def vpn_only(source: str, target: str, each: Candidate) -> str:
        return "connection refused" if each.interface == "eth0" else ""

    found = matrix(
        host("a", docker, candidate("wg0", "10.8.0.1", kind="tunnel", mbit=None)),
        host("b", docker, candidate("wg0", "10.8.0.2", kind="tunnel", mbit=None)),
        reach=vpn_only,
    )
    assert pairs(found) == [("a", "wg0", "10.8.0.1"), ("b", "wg0", "10.8.0.2")]


def test_hosts_that_do_not_reach_each_other_are_named_with_what_was_tried() -> None:
    def one_way(source: str, target: str, each: Candidate) -> str:
        return "connection timed out" if (source, target) == ("b", "a") else ""

    a = host("a", candidate("eth0", "10.0.0.5"))
    b = host("b", candidate("eth0", "10.0.0.6"))
    c = host("c", candidate("eth0", "10.0.0.7"))
    with pytest.raises(HostsApart) as caught:
        choose(matrix(a, b, c, reach=one_way))
    assert caught.value.message == "b cannot reach a: connection timed out (tried 10.0.0.5 on eth0)."
    assert caught.value.pairs == (("b", "a"),)
    for choice in ("one cluster network", "WireGuard", "Tailscale", 'interface = "wg0"', "on one host"):
        assert choice in caught.value.hint
    assert caught.value.exit_code == 1


def test_all_addresses_that_were_tried_are_told() -> None:
    a = host("a", candidate("eth0", "10.0.0.5"), candidate("eth1", "192.168.0.5"))

    def nothing(source: str, target: str, each: Candidate) -> str:
        return (
            {"eth0": "connection refused", "eth1": "no route to host"}[each.interface]
            if target == "a"
            else ""
        )

    with pytest.raises(HostsApart) as caught:
        choose(matrix(a, host("b", candidate("eth0", "10.0.0.6")), reach=nothing))
    assert caught.value.message == (
        "b cannot reach a (tried 10.0.0.5 on eth0: connection refused,"
        " 192.168.0.5 on eth1: no route to host)."
    )


def test_no_one_address_for_all() -> None:
    """Each of the others reaches one of two addresses: that is not enough."""
    a = host("a", candidate("eth0", "10.0.0.5"), candidate("eth1", "192.168.0.5"))

    def split(source: str, target: str, each: Candidate) -> str:
        return "connection refused" if target == "a" and (source == "b") == (each.interface == "eth0") else ""

    others = [host(name, candidate("eth0", f"10.0.0.{number}")) for number, name in enumerate("bcd", 6)]
    with pytest.raises(HostsApart) as caught:
        choose(matrix(a, *others, reach=split))
    assert caught.value.message == "b cannot reach a: connection refused (tried 10.0.0.5 on eth0)."


def test_many_pairs_are_told_in_few_lines() -> None:
    hosts = [host(f"h{number}", candidate("eth0", f"10.0.0.{number}")) for number in range(1, 17)]
    with pytest.raises(HostsApart) as caught:
        choose(matrix(*hosts, reach=lambda *_: "connection refused"))
    lines = caught.value.message.splitlines()
    assert len(lines) == 9
    assert lines[-1] == "And 232 more like these."
    assert len(caught.value.pairs) == 240


def test_a_host_without_an_interface() -> None:
    with pytest.raises(HostsApart, match=r"b has no network interface .*reach") as caught:
        choose(matrix(host("a", candidate("eth0", "10.0.0.5")), host("b")))
    assert caught.value.pairs == (("a", "b"),)


def test_two_names_of_one_machine() -> None:
    a, b = (host(name, candidate("eth0", "10.0.0.5"), host_id="same") for name in "ab")
    with pytest.raises(UsageError, match="a and b are two names of one machine"):
        choose(matrix(a, b))


def test_two_containers_of_one_machine() -> None:
    a, b = (host(name, candidate("eth0", f"172.17.0.{ord(name)}"), boot_id="same") for name in "ab")
    assert len(choose(matrix(a, b))) == 2
    with pytest.raises(HostsApart) as caught:
        choose(matrix(a, b, reach=lambda *_: "no route to host"))
    assert (
        caught.value.hint.splitlines()[0] == "a and b are on one machine: put both containers in one network."
    )
    assert len(caught.value.hint.splitlines()) == 2


# --- the rendezvous and open ports --------------------------------------------------------------------------


def meeting(target: str, address: str, *sources: str, error: str = "", port: int = 20007) -> list[Probe]:
    """What came of trying the rendezvous."""
    return [Probe(each, target, "eth0", address, port, not error, error) for each in sources]


def test_where_the_ranks_meet() -> None:
    a, b = host("a", candidate("eth0", "10.0.0.5")), host("b", candidate("eth0", "10.0.0.6"))
    found = matrix(a, b)
    lead = choose(found)[0]
    assert rendezvous(found, lead, 29111) == Rendezvous("10.0.0.5", 29111)

    fixed = matrix(a, b, met=meeting("a", "10.0.0.5", "a", "b", port=29500))
    assert rendezvous(fixed, lead, 29111, port=29500) == Rendezvous("10.0.0.5", 29500)

    inside = dataclasses.replace(a, ports=(20000, 65000))
    found = matrix(inside, b, met=meeting("a", "10.0.0.5", "a", "b"))
    assert rendezvous(found, choose(found)[0], 29111) == Rendezvous("10.0.0.5", 20007)

    called = dataclasses.replace(a, peer_address="192.0.2.5")
    found = matrix(called, b, met=meeting("a", "192.0.2.5", "a", "b"))
    assert rendezvous(found, choose(found)[0], 29111) == Rendezvous("192.0.2.5", 29111)


def test_a_rendezvous_that_is_not_reached_is_refused() -> None:
    a = host("a", candidate("eth0", "10.0.0.5"), peer_address="192.0.2.5", ports=(20000, 65000))
    b = host("b", candidate("eth0", "10.0.0.6"))
    met = [
        *meeting("a", "192.0.2.5", "a", error="connection timed out"),
        *meeting("a", "192.0.2.5", "b", error="connection refused"),
    ]
    found = matrix(a, b, met=met)
    with pytest.raises(HostsApart) as caught:
        rendezvous(found, choose(found)[0], 29111)
    assert caught.value.message.splitlines() == [
        "a cannot reach itself at 192.0.2.5:20007 for the rendezvous: connection timed out.",
        "b cannot reach a at 192.0.2.5:20007 for the rendezvous: connection refused.",
    ]
    assert caught.value.pairs == (("a", "a"), ("b", "a"))
    assert "a itself has to reach" in caught.value.hint


def test_a_port_that_is_in_use_is_told() -> None:
    a = host("a", candidate("eth0", "10.0.0.5"), rendezvous_error="address already in use")
    found = matrix(a, host("b", candidate("eth0", "10.0.0.6")), met=meeting("a", "10.0.0.5", "b", error="x"))
    with pytest.raises(
        EncampError, match=r"a cannot be the rendezvous at 10\.0\.0\.5:20007: address already in use"
    ):
        rendezvous(found, choose(found)[0], 29111, port=20007)
    restarted = rendezvous(found, choose(found)[0], 29111, port=20007, port_may_be_held=True)
    assert restarted == Rendezvous("10.0.0.5", 20007), "the run that is restarted holds it"


def behind_a_firewall(error: str = "connection timed out", **fields: object) -> tuple[Matrix, HostNetwork]:
    """Two hosts; of `a` some ports are open, and the one that the kernel chose is not, says `error`."""
    a = host("a", candidate("eth0", "10.0.0.5"), ports=(20000, 20100), **fields)
    b = host("b", candidate("eth0", "10.0.0.6"))
    address = a.peer_address or "10.0.0.5"
    met = meeting("a", address, "a", "b")
    return matrix(a, b, reach=lambda _, target, __: error if target == "a" else "", met=met), a


def test_open_ports_that_are_not_those_of_the_kernel() -> None:
    with pytest.raises(HostsApart) as caught:
        choose(behind_a_firewall()[0])
    first, second = caught.value.message.splitlines()
    assert first == "b cannot reach a: connection timed out (tried 10.0.0.5 on eth0)."
    assert second == (
        "Port 20007 of a is reached, but NCCL and gloo listen on ports that the kernel chooses: there"
        " 32768-60999, of which only 20000-20100 are open."
    )
    assert 'net.ipv4.ip_local_port_range="20000 20100"' in caught.value.hint
    assert "WireGuard" in caught.value.hint


def test_open_ports_from_which_the_kernel_chooses() -> None:
    found, _ = behind_a_firewall(error="", local_ports=(20000, 20100))
    assert rendezvous(found, choose(found)[0], 29111) == Rendezvous("10.0.0.5", 20007)


def test_an_open_port_that_the_kernel_chose_by_luck_is_not_enough() -> None:
    a = host("a", candidate("eth0", "10.0.0.5"), ports=(39000, 41000))
    found = matrix(
        a, host("b", candidate("eth0", "10.0.0.6")), met=meeting("a", "10.0.0.5", "a", "b", port=39001)
    )
    with pytest.raises(HostsApart, match="of which only 39000-41000 are open") as caught:
        choose(found)
    assert caught.value.pairs == (("b", "a"),)
    assert "b does not reach every port of a." in caught.value.message


def test_a_mapped_address_is_not_the_one_that_ranks_tell_each_other() -> None:
    found, _ = behind_a_firewall(peer_address="203.0.113.7", local_ports=(20000, 20100))
    with pytest.raises(HostsApart) as caught:
        choose(found)
    assert caught.value.message.splitlines()[1] == (
        "Port 20007 of a is reached at 203.0.113.7, but NCCL and gloo tell the others the address of the"
        " interface, 10.0.0.5."
    )
    assert "Mapped ports are not enough" in caught.value.hint
