"""Projects on their way to lab hosts: full disks, cut connections, slow and lossy networks, lost power."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from waiting import eventually

from tui.fleet import session
from tui.fleet.code_sync import sync, sync_all
from tui.fleet.errors import RequestRefused
from tui.fleet.parallel import HostsFailed
from tui.fleet.project import Project, collect
from tui.fleet.prompts import NoPrompts
from tui.fleet.session import Session
from tui.fleet.store import Store

from .host import LabHost
from .lab import Lab
from .options import Cable

pytestmark = [pytest.mark.sshd, pytest.mark.timeout(180)]

Connect = Callable[[LabHost], Awaitable[Session]]


@pytest.fixture
async def connect(client_home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connect]:
    monkeypatch.setattr(session, "FIRST_RETRY", 0.1)
    monkeypatch.setattr(session, "LAST_RETRY", 0.5)
    tasks: list[asyncio.Task[None]] = []

    async def start(host: LabHost) -> Session:
        started = Session(host.inventory(), Store(), NoPrompts(accept_new_host_key=True))
        tasks.append(asyncio.ensure_future(started.run()))
        await started.connected(60)
        return started

    yield start
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def make_project(folder: Path, *sizes: int) -> Project:
    folder.mkdir()
    for number, size in enumerate(sizes):
        (folder / f"file{number}").write_bytes(os.urandom(size))
    return collect(folder)


def tree(host: LabHost, project: Project) -> Path:
    return host.home / ".encamp" / "code" / project.tree.sha256


def whole(folder: Path, project: Project) -> bool:
    return all(
        (folder / entry.path).read_bytes() == (project.folder / entry.path).read_bytes()
        for entry in project.entries
    )


def used(host: LabHost) -> int:
    """Kilobytes of code on the host, as it sees its own disk."""
    return int(host.inside("du", "-sk", "/root/.encamp/code").split()[0])


async def test_a_full_disk_on_one_of_three_hosts(lab: Lab, connect: Connect, tmp_path: Path) -> None:
    hosts = lab.up(3)
    full = hosts[1]
    full.inside("mkdir", "-p", "/root/.encamp")
    full.inside("mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "tmpfs", "/root/.encamp")
    sessions = [await connect(host) for host in hosts]
    small = make_project(tmp_path / "small", 1_000_000)
    await sync_all(sessions, small)
    before = used(full)
    large = make_project(tmp_path / "large", 2_000_000, 80_000_000)
    with pytest.raises(HostsFailed) as failed:
        await sync_all(sessions, large)
    assert list(failed.value.failures) == [full.name]
    assert failed.value.code == "no-space"
    assert "no space for the project in /root/.encamp/code" in failed.value.message
    assert used(full) <= before + 8
    for host in (hosts[0], hosts[2]):
        assert whole(tree(host, large), large)
    # Nothing else has come to harm, and what fits still comes.
    await sync(sessions[1], small)
    await sync(sessions[1], make_project(tmp_path / "other", 2_000_000))


async def test_a_disk_that_fills_up_while_a_project_comes(lab: Lab, connect: Connect, tmp_path: Path) -> None:
    host = lab.add(cable=Cable(rate_mbit=80))
    host.inside("mkdir", "-p", "/root/.encamp")
    host.inside("mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "tmpfs", "/root/.encamp")
    there = await connect(host)
    project = make_project(tmp_path / "project", *[1_000_000] * 30)
    filled: list[int] = []

    def fill(name: str, done: int, total: int) -> None:
        if done > 5_000_000 and not filled:
            filled.append(done)
            subprocess.run(
                ["nsenter", "--target", str(host._init()), "--all", "--root", "--wd=/", "sh", "-c",
                 "dd if=/dev/zero of=/root/.encamp/hog bs=1M 2> /dev/null; true"],
                check=True,
            )  # fmt: skip

    with pytest.raises(RequestRefused) as refused:
        await sync(there, project, fill)
    assert refused.value.code == "no-space"
    assert "Make room" in refused.value.hint
    assert used(host) < 100, "what had come gave its space back"
    await there.request("ping", {})
    host.inside("rm", "/root/.encamp/hog")
    await sync(there, project)


async def test_a_network_that_goes_away_in_the_middle(
    lab: Lab, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = lab.add(cable=Cable(rate_mbit=80))
    there = await connect(host)
    project = make_project(tmp_path / "project", *[200_000] * 40, 12_000_000)
    cut: list[int] = []
    begun: list[int] = []

    def shown(name: str, done: int, total: int) -> None:
        if cut and len(begun) < 1:
            begun.append(done)
        if done > 6_000_000 and not cut:
            cut.append(done)
            host.reboot()

    await sync(there, project, shown)
    assert cut
    assert begun[0] >= 5_000_000, "what had come was kept"
    assert whole(tree(host, project), project)
    assert await eventually(lambda: used(host) < 21_000)


async def test_unchanged_over_a_long_way(lab: Lab, connect: Connect, tmp_path: Path) -> None:
    host = lab.add()
    there = await connect(host)
    project = make_project(tmp_path / "project", *[1_000] * 500)
    await sync(there, project)
    host.set_cable(Cable(latency_ms=400))
    await there.request("ping", {})
    start = time.monotonic()
    await sync(there, project)
    assert time.monotonic() - start < 0.8, "at most two round trips"


async def test_a_slow_link_lets_keys_and_telemetry_pass(lab: Lab, connect: Connect, tmp_path: Path) -> None:
    host = lab.add(cable=Cable(latency_ms=40, rate_mbit=16))
    there = await connect(host)
    project = make_project(tmp_path / "project", 16_000_000)
    sending = asyncio.ensure_future(sync(there, project))
    slowest = 0.0
    oldest, since, seen = 0.0, time.monotonic(), there.view.sample
    try:
        while not sending.done():
            start = time.monotonic()
            await there.request("ping", {})
            slowest = max(slowest, time.monotonic() - start)
            if there.view.sample is not seen:
                since, seen = time.monotonic(), there.view.sample
            oldest = max(oldest, time.monotonic() - since)
    finally:
        await sending
    print(f"slowest answer {slowest:.2f} s, oldest telemetry {oldest:.2f} s")
    assert slowest < 1.5
    assert oldest < 2.5


async def test_latency_and_loss(lab: Lab, connect: Connect, tmp_path: Path) -> None:
    host = lab.add(cable=Cable(latency_ms=200, loss=0.02))
    there = await connect(host)
    project = make_project(tmp_path / "project", *[20_000] * 50)
    await sync(there, project)
    assert whole(tree(host, project), project)
