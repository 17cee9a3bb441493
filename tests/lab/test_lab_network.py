"""Hosts of a lab reach each other as their network lets them, and nobody else."""

from __future__ import annotations

import subprocess
import time

import pytest
from waiting import wait_until

from .host import LabHost
from .lab import Lab
from .options import Cable

pytestmark = pytest.mark.sshd


def connecting_ms(host: LabHost, address: str) -> float:
    """The quickest of some connections from a host, when the other's hardware address is known already."""
    wait_until(lambda: host.reaches(address, 22, timeout=10))
    code = (
        "import socket, time\n"
        "for _ in range(3):\n"
        "    start = time.perf_counter()\n"
        f"    socket.create_connection(({address!r}, 22), 10).close()\n"
        "    print((time.perf_counter() - start) * 1000)\n"
    )
    return min(map(float, host.inside("python3", "-S", "-c", code).split()))


def sent_again(host: LabHost) -> int:
    """How many TCP segments a host has sent more than once."""
    names, values = (line.split() for line in host.inside("grep", "^Tcp:", "/proc/net/snmp").splitlines())
    return int(values[names.index("RetransSegs")])


def test_two_hosts_with_sshd_reach_each_other(lab: Lab) -> None:
    a, b = lab.up(2)
    for host, peer in ((a, b), (b, a)):
        said = host.run(f"hostname; head -c 4 < /dev/tcp/{peer.address}/22")
        assert said.stdout == f"{host.name}\nSSH-"


def test_two_labs_do_not_meet(lab: Lab) -> None:
    with Lab() as other:
        a, b = lab.add(), other.add()
        assert a.address != b.address
        assert not a.reaches(b.address, 22)
    assert a.run("true").returncode == 0


def test_there_is_no_way_out_of_a_lab(lab: Lab) -> None:
    host = lab.add()
    assert host.inside("ip", "route").split()[0] == f"{host.address.rpartition('.')[0]}.0/24"
    assert len(host.inside("ip", "route").splitlines()) == 1


def test_a_host_behind_nat_has_no_way_in_but_ssh(lab: Lab) -> None:
    outside, inside = lab.add(), lab.add(nat="gw")
    inside.run("python3 -m http.server 29500 > /dev/null 2>&1 &")
    assert inside.private_address == "172.17.0.2"
    wait_until(lambda: inside.reaches(inside.private_address, 29500))
    wait_until(lambda: inside.reaches(outside.address, 22))
    wait_until(lambda: outside.reaches(inside.address, inside.ssh_port))
    assert not outside.reaches(inside.address, 29500)
    outside.inside("ip", "route", "add", "172.17.0.0/16", "via", inside.address)
    assert not outside.reaches(inside.private_address, 29500)


def test_hosts_behind_one_gateway_share_its_address_and_reach_each_other(lab: Lab) -> None:
    a, b = lab.up(2, nat="gw")
    stranger = lab.add(nat="other")
    assert a.address == b.address != stranger.address
    assert a.ssh_port != b.ssh_port
    assert a.private_address == stranger.private_address
    wait_until(lambda: a.reaches(b.private_address, 22))
    assert not stranger.reaches(b.private_address, 22)
    assert [host.run("hostname").stdout for host in (a, b, stranger)] == ["h1\n", "h2\n", "h3\n"]


def test_latency_is_added_to_the_round_trip_and_can_be_taken_away(lab: Lab) -> None:
    a, b = lab.add(), lab.add(cable=Cable(latency_ms=150))
    assert 150 <= connecting_ms(a, b.address) < 300
    assert 150 <= connecting_ms(b, a.address) < 300
    b.set_cable(Cable())
    assert connecting_ms(a, b.address) < 150


def test_latency_of_a_host_behind_nat(lab: Lab) -> None:
    a, b = lab.add(), lab.add(nat="gw", cable=Cable(latency_ms=150))
    assert 150 <= connecting_ms(b, a.address) < 300


def test_loss_loses_packets_and_connections_survive_it(lab: Lab) -> None:
    host = lab.add(cable=Cable(loss=0.05))
    before = sent_again(host)
    assert len(host.run("head -c 2000000 /dev/zero | tr '\\0' x").stdout) == 2_000_000
    assert sent_again(host) > before + 5


def test_rate_is_a_limit(lab: Lab) -> None:
    host = lab.add(cable=Cable(rate_mbit=16))
    start = time.monotonic()
    done = subprocess.run([*host.ssh_command(), "head -c 2000000 /dev/zero"], capture_output=True, check=True)
    assert len(done.stdout) == 2_000_000
    assert time.monotonic() - start > 0.9
