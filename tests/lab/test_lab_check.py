"""Real hosts are checked: limits, clocks and GPUs, whether they reach each other; for a launch too."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from e2e.camp import Camp

from tui.fleet import preflight
from tui.fleet.compare import Plan
from tui.fleet.findings import OK, Finding, Wanted
from tui.fleet.preflight import Report
from tui.fleet.prompts import NoPrompts
from tui.fleet.session import Session
from tui.fleet.store import Store

from .host import LabHost
from .lab import Lab
from .options import Cable

pytestmark = [pytest.mark.sshd, pytest.mark.usefixtures("client_home")]


@asynccontextmanager
async def sessions_with(hosts: Sequence[LabHost]) -> AsyncIterator[list[Session]]:
    """A live session with each host."""
    store = Store()
    sessions = [Session(host.inventory(), store, NoPrompts(accept_new_host_key=True)) for host in hosts]
    tasks = [asyncio.ensure_future(session.run()) for session in sessions]
    try:
        for session in sessions:
            await session.connected(40)
        yield sessions
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def about(report: Report, check: str, host: str = "") -> Finding:
    """The worst finding of that name."""
    return next(each for each in report.findings if (each.check, each.host) == (check, host))


def plan() -> Plan:
    return Plan("r", 1, 2, 2, sys.executable, (), {}, "/root", "2.13.0+cpu", None, 29999)


async def test_hosts_of_all_kinds(lab: Lab) -> None:
    lab.add("good", shm="512m")
    lab.add("tight", shm="16m", cpus=0.5, pids=150, memory="700m", clock_offset=3600, noise="vast")
    lab.add("joined", gpus=2, noexec_home=True)
    fake = lab.hosts["joined"].gpus
    assert fake is not None
    fake.join(0, 1, 4)
    hosts = list(lab.hosts.values())
    async with sessions_with(hosts) as sessions:
        report = await preflight.check(sessions, throughput=False, wanted=Wanted(nproc_per_node=2))
        facts = report.subjects["tight"].facts.host
    assert not report.silent
    assert facts is not None
    assert facts.cpu.quota == 0.5
    assert facts.hostname == "tight"
    said = {name: about(report, name, "tight").text for name in ("shm", "cpu", "pids", "memory", "clock")}
    assert "of 16.0 M in /dev/shm" in said["shm"]
    assert said["cpu"].startswith("0.5 cores may be used, nproc says ")
    assert "of 150 processes and threads left" in said["pids"]
    assert "of 700 M (the machine has" in said["memory"]
    assert said["clock"] == "60 min ahead of ours"
    assert all(about(report, name, "tight").fix for name in ("shm", "cpu", "pids", "clock"))
    assert [
        about(report, name, "good").level for name in ("shm", "cpu", "memory", "clock", "disk", "home")
    ] == [OK] * 6
    assert about(report, "links", "joined").text == "NVLink between all GPUs, 4 each"
    assert "noexec" in about(report, "home", "joined").text
    assert about(report, "gpus", "joined").text.startswith("2 × RTX 4090 24 G, driver 570.133.20")
    assert about(report, "network").text.startswith("every host reaches every other")


async def test_a_pair_that_cannot_meet_is_named(lab: Lab) -> None:
    a, b, hidden = lab.add("a"), lab.add("b"), lab.add("hidden", nat="gw")
    async with sessions_with([a, b, hidden]) as sessions:
        report = await preflight.check(sessions, throughput=False)
        apart = [each.text for each in report.blockers if each.check == "network"]
        assert len(apart) == 2
        assert all("does not reach hidden" in text for text in apart)
        lab.cut(a, b)
        report = await preflight.check(sessions[:2], throughput=False)
        apart = [each.text for each in report.blockers if each.check == "network"]
        assert len(apart) == 1
        assert apart[0].startswith("a does not reach b, nor the other way (")
        lab.mend()
        b.set_cable(Cable(latency_ms=60))
        report = await preflight.check(sessions[:2], throughput=False)
    assert not [each for each in report.blockers if each.check == "network"]
    assert " ms apart" in about(report, "network").text


@pytest.mark.slow
async def test_a_host_that_dies_is_a_finding_and_the_others_are_judged(lab: Lab) -> None:
    a, b = lab.up(2)
    async with sessions_with([a, b]) as sessions:
        b.power_cut()
        report = await asyncio.wait_for(preflight.check(sessions, throughput=False), 110)
    assert report.unreachable
    assert about(report, "connection", "h2").fix
    assert report.subjects.keys() == {"h1"}


async def test_a_launch_asks_only_for_what_it_does_not_know(lab: Lab) -> None:
    hosts = lab.up(2, shm="16m")
    async with sessions_with(hosts) as sessions:
        plans = {host.name: plan() for host in hosts}
        began = asyncio.get_running_loop().time()
        report = await preflight.for_launch(sessions, Wanted(2), plans)
        took = asyncio.get_running_loop().time() - began
    assert not report.blockers
    assert {each.check for each in report.warnings} >= {"shm"}
    assert report.subjects["h1"].facts.interpreters is None, "no Python was asked"
    assert took < 2.0


@pytest.mark.slow
def test_the_command_reports_the_matrix(lab: Lab, tmp_path: Path) -> None:
    hosts = lab.up(2)
    camp = Camp(tmp_path)
    for host in hosts:
        target = f"ssh -p {host.ssh_port} -i {host.key} -o IdentitiesOnly=yes root@{host.address}"
        camp.run("hosts", "add", target, "--name", host.name, "--no-connect")
    # A host of the lab has a Python, and no torch in it.
    done = camp.run("check", "h1", "h2", "--json", "--accept-new-host-key", code=1)
    assert {
        (each["host"], each["check"]) for each in done.json["findings"] if each["level"] == "blocker"
    } == {
        ("h1", "python"),
        ("h2", "python"),
    }
    pairs = done.json["matrix"]["pairs"]
    assert [(pair["from"], pair["to"], pair["ok"]) for pair in pairs] == [
        ("h1", "h2", True),
        ("h2", "h1", True),
    ]
    assert all(pair["mbit"] > 1 and pair["rtt_ms"] < 1000 for pair in pairs)
    text = camp.run("check", "h1", "h2", "--no-throughput", code=1).out.decode()
    assert text.splitlines()[0].startswith("h1: 1 blocker")
    assert "FROM \\ TO" in text
    assert "Gbit/s" not in text
    hosts[1].power_cut()
    assert "h2: 1 blocker" in camp.run("check", "h1", "h2", code=3).out.decode()
