"""Real hosts are measured, and the place where their ranks meet is chosen or refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from waiting import eventually

from tui.fleet.apart import HostsApart
from tui.fleet.errors import EncampError
from tui.fleet.matrix import Matrix
from tui.fleet.network import measure
from tui.fleet.parallel import HostsFailed
from tui.fleet.placement import Rendezvous, choose, rendezvous
from tui.fleet.prompts import NoPrompts
from tui.fleet.session import Session
from tui.fleet.store import Store

from .host import LabHost
from .lab import Lab
from .options import Cable

pytestmark = pytest.mark.sshd

OPEN = (20000, 20100)

SUM = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor(dist.get_rank())
dist.all_reduce(total)
print(total.item(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@asynccontextmanager
async def connected(hosts: Sequence[LabHost], **fields: object) -> AsyncIterator[list[Session]]:
    """A session with each host; `fields` are those of its entry in the inventory."""
    store = Store()
    entries = [host.inventory(**fields) for host in hosts]
    sessions = [Session(entry, store, NoPrompts(accept_new_host_key=True)) for entry in entries]
    tasks = [asyncio.ensure_future(session.run()) for session in sessions]
    try:
        for session in sessions:
            await session.connected(40)
        yield sessions
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def places(matrix: Matrix) -> list[tuple[str, str, str]]:
    """Name, interface and address of the chosen nodes."""
    return [(node.name, node.interface, node.address) for node in choose(matrix)]


def refusal(matrix: Matrix) -> HostsApart:
    """Why there is no place for them."""
    with pytest.raises(HostsApart) as caught:
        choose(matrix)
    return caught.value


async def nobody_listens_any_more(hosts: Sequence[LabHost]) -> None:
    """Wait until every host has only its sshd."""

    def listeners() -> bool:
        return all(host.inside("ss", "-Htln").count("\n") == 1 for host in hosts)

    await eventually(listeners, message="no listener is left")


async def test_three_hosts_reach_each_other(lab: Lab) -> None:
    hosts = lab.up(3)
    async with connected(hosts) as sessions:
        start = time.monotonic()
        matrix = await measure(sessions)
        took = time.monotonic() - start
        assert took < 4, "all at once, and nobody is waited for"
        assert {(each.source, each.target) for each in matrix.probes} == {
            (one.name, other.name) for one in hosts for other in hosts if one is not other
        }
        for probe in matrix.probes:
            assert probe.ok, probe
            assert probe.interface == "eth0"
            assert probe.rtt_ms is not None
            assert 0 < probe.rtt_ms < 200
            assert probe.mbit is None
        assert places(matrix) == [(host.name, "eth0", host.address) for host in hosts]
        lead = choose(matrix, rendezvous_host="h3")[0]
        assert rendezvous(matrix, lead, 29111) == Rendezvous(hosts[2].address, 29111)
        await nobody_listens_any_more(hosts)


async def test_the_throughput_is_that_of_the_cable(lab: Lab) -> None:
    hosts = [*lab.up(2), lab.add(cable=Cable(rate_mbit=40, latency_ms=20))]
    async with connected(hosts) as sessions:
        matrix = await measure(sessions, throughput=True)
        for probe in matrix.probes:
            assert probe.ok, probe
            assert probe.rtt_ms is not None
            assert probe.mbit is not None
            if "h3" in (probe.source, probe.target):
                assert probe.rtt_ms > 19
                assert 5 < probe.mbit < 45
            else:
                assert probe.mbit > 45
        await nobody_listens_any_more(hosts)


async def test_a_host_behind_nat_is_refused_with_both_names(lab: Lab) -> None:
    outside, inside = lab.add("outside"), lab.add("inside", nat="gw")
    async with connected([outside, inside]) as sessions:
        error = refusal(await measure(sessions))
    assert error.pairs == (("outside", "inside"),)
    assert error.message.startswith("outside cannot reach inside: ")
    assert f"(tried {inside.private_address} on eth0)" in error.message
    assert "WireGuard" in error.hint


async def test_hosts_behind_different_nats_do_not_take_themselves_for_each_other(lab: Lab) -> None:
    a, b = lab.add("a", nat="one"), lab.add("b", nat="two")
    assert a.private_address == b.private_address
    async with connected([a, b]) as sessions:
        error = refusal(await measure(sessions))
    assert error.pairs == (("b", "a"), ("a", "b"))


@pytest.mark.parametrize("configured", [False, True], ids=["found", "configured"])
async def test_hosts_behind_nats_meet_on_their_overlay(lab: Lab, configured: bool) -> None:
    hosts = [lab.add(name, nat=f"nat-{name}", overlays=(("wg0", "vpn"),)) for name in "ab"]
    fields = {"interface": "wg0"} if configured else {}
    async with connected(hosts, **fields) as sessions:
        matrix = await measure(sessions)
    assert places(matrix) == [(host.name, "wg0", host.overlay_addresses["wg0"]) for host in hosts]
    assert {each.interface for each in matrix.probes} == ({"wg0"} if configured else {"wg0", "eth0"})


async def test_an_interface_that_a_host_has_not_got(lab: Lab) -> None:
    hosts = lab.up(2)
    async with connected(hosts) as sessions:
        with pytest.raises(HostsFailed, match="h1: There is no network interface wg7") as caught:
            await measure(sessions, interface="wg7")
        assert f"h1 has: eth0 ({hosts[0].address})" in caught.value.hint


async def test_a_partition_names_the_two_hosts_between_which_it_is(lab: Lab) -> None:
    a, b, c = hosts = lab.up(3)
    async with connected(hosts) as sessions:
        lab.cut(a, c)
        start = time.monotonic()
        error = refusal(await measure(sessions))
        assert time.monotonic() - start < 10, "one waiting time for all"
        assert error.message.splitlines() == [
            f"h3 cannot reach h1: connection timed out (tried {a.address} on eth0).",
            f"h1 cannot reach h3: connection timed out (tried {c.address} on eth0).",
        ]
        lab.mend()
        await eventually(lambda: a.reaches(c.address, 22))
        assert places(await measure(sessions)) == [(host.name, "eth0", host.address) for host in (a, b, c)]


async def test_the_default_route_may_lead_elsewhere(lab: Lab) -> None:
    """The hosts are reached by eth0, over which they do not reach each other."""
    a, b = hosts = [lab.add(name, overlays=(("eth1", "inner"),)) for name in "ab"]
    for host in hosts:
        host.inside("ip", "route", "add", "default", "via", lab.controller)
    lab.cut(a, b)
    async with connected(hosts) as sessions:
        matrix = await measure(sessions)
        assert [each.interface for each in matrix.hosts[0].candidates] == ["eth0", "eth1"]
        assert places(matrix) == [(host.name, "eth1", host.overlay_addresses["eth1"]) for host in (a, b)]


async def test_open_ports_from_which_the_kernel_does_not_choose(lab: Lab) -> None:
    a, b = lab.add(open_ports=OPEN), lab.add()
    async with connected([a, b], ports=OPEN) as sessions:
        error = refusal(await measure(sessions))
    assert error.pairs == (("h2", "h1"),)
    assert "NCCL and gloo listen on ports that the kernel chooses: there 32768-60999" in error.message
    assert 'net.ipv4.ip_local_port_range="20000 20100"' in error.hint


async def test_open_ports_from_which_the_kernel_chooses(lab: Lab) -> None:
    hosts = lab.up(2, open_ports=OPEN, local_ports=OPEN)
    async with connected(hosts, ports=OPEN) as sessions:
        matrix = await measure(sessions)
        found = choose(matrix)
        meeting = rendezvous(matrix, found[0], 29111)
    assert meeting.address == hosts[0].address
    assert OPEN[0] <= meeting.port <= OPEN[1]


async def test_a_rendezvous_port_that_is_taken(lab: Lab) -> None:
    a, b = lab.up(2)
    async with connected([a, b]) as sessions:
        matrix = await measure(sessions, rendezvous_host="h2", rendezvous_port=22)
        lead = choose(matrix, rendezvous_host="h2")[0]
        with pytest.raises(EncampError, match=r"h2 cannot be the rendezvous at .*:22: .*in use"):
            rendezvous(matrix, lead, 29111, port=22)
        matrix = await measure(sessions, rendezvous_host="h2", rendezvous_port=29500)
        assert rendezvous(matrix, lead, 29111, port=29500) == Rendezvous(b.address, 29500)


async def test_a_loss_does_not_part_hosts(lab: Lab) -> None:
    hosts = lab.up(3, cable=Cable(latency_ms=200, loss=0.02))
    async with connected(hosts) as sessions:
        matrix = await measure(sessions)
    assert [name for name, _, _ in places(matrix)] == ["h1", "h2", "h3"]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("way", ["overlay", "open ports"])
async def test_ranks_do_meet_there(lab: Lab, way: str) -> None:
    """What was measured holds for gloo: each host in its NAT, or with few ports open."""
    if way == "overlay":
        hosts = [lab.add(name, nat=name, overlays=(("wg0", "vpn"),), resolves="loopback") for name in "ab"]
        fields: dict[str, object] = {}
    else:
        hosts = lab.up(2, open_ports=OPEN, local_ports=OPEN, resolves="loopback")
        fields = {"ports": OPEN}
    async with connected(hosts, **fields) as sessions:
        matrix = await measure(sessions)
        nodes = choose(matrix)
        meeting = rendezvous(matrix, nodes[0], 20050)
    clients = []
    try:
        for number, (host, node) in enumerate(zip(hosts, nodes, strict=True)):
            (host.home / "sum.py").write_text(SUM)
            torchrun = (
                f"OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME={node.interface}"
                f" {sys.executable} -m torch.distributed.run --nnodes 2 --node-rank {number}"
                f" --nproc-per-node 2 --local-addr {node.address}"
                f" --rdzv-backend static --rdzv-endpoint {meeting.address}:{meeting.port} sum.py"
            )
            words = [*host.ssh_command(), torchrun]
            clients.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        said = [client.communicate(timeout=90)[0].split() for client in clients]
    finally:
        for client in clients:
            client.kill()
            client.communicate()
    assert said == [["6", "6"]] * 2
