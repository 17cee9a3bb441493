"""Environments on hosts of the lab: built beside the image's Python, live, across a lost connection."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import wheels
from waiting import eventually

from agent import wire
from tui.fleet import env_setup, session
from tui.fleet.errors import RequestRefused
from tui.fleet.parallel import HostsFailed
from tui.fleet.prompts import NoPrompts
from tui.fleet.session import Session
from tui.fleet.store import Store

from .host import LabHost
from .lab import Lab

pytestmark = pytest.mark.sshd

Connect = Callable[..., Awaitable[list[Session]]]

SETUP = wire.EnvSetup(("tinypkg",), ("--no-index", "--find-links", "/root/index"))
SLOW = wire.EnvSetup(("slowpkg",), ("--no-index", "--find-links", "/root/index"))


@pytest.fixture
async def connect(client_home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connect]:
    monkeypatch.setattr(session, "FIRST_RETRY", 0.1)
    tasks: list[asyncio.Task[None]] = []

    async def start(*hosts: LabHost) -> list[Session]:
        store = Store()
        prompts = NoPrompts(accept_new_host_key=True)
        sessions = [Session(host.inventory(), store, prompts) for host in hosts]
        tasks.extend(asyncio.ensure_future(each.run()) for each in sessions)
        for each in sessions:
            await each.connected(60)
        return sessions

    yield start
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def break_connections(host: LabHost) -> None:
    """End the host's side of all its SSH connections."""
    for pid in host.processes():
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sshd: root"):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.torch
async def test_an_environment_on_two_hosts(lab: Lab, connect: Connect) -> None:
    hosts = [lab.add(noise="vast"), lab.add()]
    for host in hosts:
        wheels.wheel(host.home / "index", "tinypkg", {"tinypkg.py": "WORD = 'tiny'\n"}, requires=["torch"])
    sessions = await connect(*hosts)
    said: list[tuple[str, str]] = []
    built = await env_setup.build_all(sessions, sys.executable, SETUP, lambda *words: said.append(words))
    for host in hosts:
        assert built[host.name].fresh
        assert ("Successfully installed tinypkg-1.0") in [line for name, line in said if name == host.name]
        program = "import tinypkg, torch; print(tinypkg.WORD, torch.__version__)"
        shown = host.run(f"{built[host.name].python} -c '{program}'").stdout.split("\n")[-2]
        assert shown == f"tiny {built[host.name].torch}"
    said.clear()
    again = await env_setup.build_all(sessions, sys.executable, SETUP, lambda *words: said.append(words))
    assert (said, {each.fresh for each in again.values()}) == ([], {False})
    assert {name: each.python for name, each in again.items()} == {
        name: each.python for name, each in built.items()
    }


async def test_a_build_is_followed_across_a_break(lab: Lab, connect: Connect) -> None:
    host = lab.add()
    gate = host.home / "gate"
    wheels.waiting_package(host.home / "index", "slowpkg", Path("/root/gate"))
    (connected,) = await connect(host)
    said: list[str] = []
    building = asyncio.ensure_future(env_setup.build(connected, sys.executable, SLOW, said.append))
    try:
        await eventually((host.home / "gate.reached").exists, 60)
        break_connections(host)
        await eventually(lambda: not connected.live)
        await eventually(lambda: connected.live, 60)
        gate.touch()
        built = await asyncio.wait_for(building, 60)
    finally:
        building.cancel()
    assert built.fresh
    assert len(said) == len(set(said)), "no line comes twice"
    assert [line for line in said if line.startswith("Built in")] == said[-1:]


async def test_a_refusal_names_the_host_and_has_pip_s_words(lab: Lab, connect: Connect) -> None:
    hosts = lab.up(2)
    for host in hosts:
        (host.home / "index").mkdir()
    wheels.wheel(hosts[0].home / "index", "tinypkg", {"tinypkg.py": "\x1b[31m"})
    sessions = await connect(*hosts)
    with pytest.raises(HostsFailed) as refusal:
        await env_setup.build_all(sessions, sys.executable, SETUP, lambda *_: None)
    assert list(refusal.value.failures) == ["h2"]
    assert "ERROR: No matching distribution found for tinypkg" in refusal.value.message
    assert refusal.value.code == "no-env"
    with pytest.raises(RequestRefused, match="is not a program") as missing:
        await env_setup.build(sessions[0], "/no/python", SETUP, lambda _: None)
    assert missing.value.code == "no-python"
