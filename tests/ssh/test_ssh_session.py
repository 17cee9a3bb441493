"""Sessions with the real agent over a real sshd: telemetry, cuts, viewers, logs without a lost byte."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from ssh.faults import link_to
from ssh.sshd import Sshd
from waiting import eventually

from agent import process, wire
from tui.fleet import channel, session
from tui.fleet.errors import RequestRefused, Unreachable, UsageError
from tui.fleet.fleet import Fleet
from tui.fleet.hosts import Host, Inventory
from tui.fleet.prompts import NoPrompts
from tui.fleet.session import Session
from tui.fleet.ssh.server import processes_of
from tui.fleet.store import Link, Store

pytestmark = pytest.mark.sshd

YES = NoPrompts(accept_new_host_key=True)
RUN = wire.LaunchSpec("run-1", "run", "p", "ddp", "script", "/nowhere.py", nproc_per_node=1)

WRITER = """
import os, sys, time
name, lines, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
log = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in range(lines):
    os.write(log, b"line %d %s\\n" % (number, b"x" * (number % 300)))
    if number % 50 == 0:
        time.sleep(pause)
os.write(log, b"end\\n")
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FIRST_RETRY", 0.1)
    monkeypatch.setattr(session, "LAST_RETRY", 0.3)


@pytest.fixture
async def open_session(client_home: Path) -> AsyncIterator[Callable[..., Session]]:
    tasks: list[asyncio.Task[None]] = []

    def start(host: Host, **options: bool) -> Session:
        started = Session(host, Store(), YES, **options)
        tasks.append(asyncio.ensure_future(started.run()))
        return started

    yield start
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


@pytest.fixture
def attempt(sshd: Sshd) -> Iterator[Path]:
    """The folder of a running attempt on the host, without torchrun: any process is its supervisor."""
    living = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    folder = sshd.home / ".encamp" / "runs" / "run-1" / "attempts" / "1"
    folder.mkdir(parents=True)
    (folder.parent.parent / "run.json").write_text(
        json.dumps({"run": "run-1", "name": "run", "profile": "p", "strategy": "ddp", "created": time.time()})
    )
    (folder / "spec.json").write_text(json.dumps({**wire.to_json(RUN), "resolved": {"nproc_per_node": 1}}))
    (folder / "supervisor.json").write_text(
        json.dumps(
            {
                "pid": living.pid,
                "start_time": process.start_time(living.pid),
                "boot_id": process.boot_id(),
                "started": time.time(),
            }
        )
    )
    try:
        yield folder
    finally:
        living.kill()
        living.wait()


class Reader:
    """Collects a log; fetches what it is told to have missed."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.parts: dict[int, bytes] = {}
        self.gaps: list[tuple[int, int]] = []

    def data(self, offset: int, data: bytes) -> None:
        self.parts[offset] = data

    def gap(self, start: int, end: int) -> None:
        self.gaps.append((start, end))

    def ended(self) -> bool:
        return bool(self.parts) and self.parts[max(self.parts)].endswith(b"end\n")

    async def bytes(self) -> bytes:
        """All of it, in order; fails when a byte is there twice or not at all."""
        for start, end in self.gaps:
            at = start
            while at < end:
                part = await self.session.read_log("run-1", 1, "rank0", at, min(wire.MAX_CHUNK, end - at))
                assert part.offset == at
                assert part.data
                self.parts[at] = part.data
                at += len(part.data)
        whole = b""
        for offset in sorted(self.parts):
            assert offset == len(whole)
            whole += self.parts[offset]
        return whole


def write_log(folder: Path, lines: int, pause: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, folder / "rank0.log", str(lines), str(pause)])


async def test_telemetry_arrives(sshd: Sshd, open_session: Callable[..., Session]) -> None:
    first = open_session(sshd.host())
    links = [first.view.link]
    await eventually(lambda: (links[-1] is first.view.link or links.append(first.view.link)) and first.live)
    await first.connected(20)
    view = first.view
    assert view.hello is not None
    assert view.hello.home == sshd.environment
    assert view.sample is not None
    assert view.ready
    await eventually(lambda: len(view.cpu) >= 3)
    assert view.bad_messages == 0
    assert abs(view.clock_offset) < 5
    age = view.age()
    assert age is not None
    assert age < 3


async def test_the_states_of_a_first_connection(sshd: Sshd, client_home: Path) -> None:
    seen: list[Link] = []

    class Watching(Store):
        def set_link(self, name: str, link: Link, *arguments: object, **options: object) -> None:
            super().set_link(name, link, *arguments, **options)  # type: ignore[arg-type]
            seen.append(link)

    started = Session(sshd.host(), Watching(), YES)
    task = asyncio.ensure_future(started.run())
    try:
        await started.connected(20)
    finally:
        await started.close()
        await asyncio.wait([task])
    assert seen == [Link.CONNECTING, Link.CONFIRM_KEY, Link.CONNECTING, Link.INSTALLING, Link.LIVE, Link.IDLE]


async def test_two_viewers_share_one_daemon(sshd: Sshd, open_session: Callable[..., Session]) -> None:
    first, second = open_session(sshd.host()), open_session(sshd.host("other"))
    await asyncio.gather(first.connected(20), second.connected(20))
    assert first.view.hello is not None
    assert second.view.hello is not None
    assert first.view.hello.pid == second.view.hello.pid
    await first.close()
    received = second.view.received
    await eventually(lambda: second.view.received > received)


async def test_requests_and_refusals(sshd: Sshd, open_session: Callable[..., Session]) -> None:
    one = open_session(sshd.host())
    await one.connected(20)
    assert abs((await one.request("ping", {}))["time"] - time.time()) < 5
    with pytest.raises(RequestRefused) as refused:
        await one.request("no-such-method", {})
    assert refused.value.code == "unknown-method"
    with pytest.raises(RequestRefused) as refused:
        await one.read_log("run-1", 1, "rank0", 0, 10)
    assert refused.value.code == "no-run"


async def test_a_log_survives_cut_connections_byte_for_byte(
    sshd: Sshd, attempt: Path, open_session: Callable[..., Session]
) -> None:
    one = open_session(sshd.host())
    reader = Reader(one)
    writer = write_log(attempt, 20_000, 0.005)
    try:
        await one.connected(20)
        await one.follow_log("run-1", 1, "rank0", 0, reader)
        for _ in range(3):
            seen = len(reader.parts)
            await eventually(lambda seen=seen: len(reader.parts) > seen)
            assert sshd.cut() > 0
            await eventually(lambda: not one.live)
            await one.connected(20)
        await eventually(reader.ended, 30)
    finally:
        writer.kill()
        writer.wait()
    assert await reader.bytes() == (attempt / "rank0.log").read_bytes()


async def test_a_log_survives_a_daemon_that_is_killed(
    sshd: Sshd, attempt: Path, open_session: Callable[..., Session]
) -> None:
    one = open_session(sshd.host())
    reader = Reader(one)
    writer = write_log(attempt, 20_000, 0.005)
    try:
        await one.connected(20)
        await one.follow_log("run-1", 1, "rank0", 0, reader)
        await eventually(lambda: reader.parts)
        assert one.view.hello is not None
        killed = one.view.hello
        os.kill(killed.pid, 9)
        await eventually(lambda: one.live and one.view.hello.pid != killed.pid, 30)
        assert one.view.hello.host_id == killed.host_id
        assert one.view.runs["run-1"].info.state in wire.LIVE_STATES
        await eventually(reader.ended, 30)
    finally:
        writer.kill()
        writer.wait()
    assert await reader.bytes() == (attempt / "rank0.log").read_bytes()


async def test_a_slow_viewer_is_told_of_gaps_and_can_fetch_them(
    sshd: Sshd, attempt: Path, open_session: Callable[..., Session]
) -> None:
    async with link_to(sshd.port) as link:
        one = open_session(sshd.host(port=link.port))
        await one.connected(20)
        reader = Reader(one)
        await one.follow_log("run-1", 1, "rank0", 0, reader)
        link.freeze()
        writer = write_log(attempt, 150_000, 0)
        try:
            assert await asyncio.to_thread(writer.wait, 60) == 0
        finally:
            writer.kill()
            writer.wait()
        log = attempt / "rank0.log"
        assert log.stat().st_size > 20_000_000
        received = one.view.received
        await asyncio.sleep(1.5)  # the agent has time to fill what it may keep for us
        assert one.view.received == received
        link.thaw()
        await eventually(reader.ended, 60)
        assert reader.gaps
        assert one.live
        assert await reader.bytes() == log.read_bytes()


async def test_a_host_that_goes_and_comes_back(
    sshd: Sshd, open_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "RECONNECTING_SECONDS", 0.5)
    one = open_session(sshd.host())
    await one.connected(20)
    sshd.stop()
    await eventually(lambda: one.view.link is Link.RECONNECTING)
    await eventually(lambda: one.view.link is Link.UNREACHABLE)
    assert "refuses connections" in one.view.message
    with pytest.raises(Unreachable, match="refuses connections"):
        await one.connected(0.1)
    assert processes_of(sshd.home)  # the daemon does not mind
    sshd.start()
    one.retry_now()
    await one.connected(20)
    assert one.view.message == ""


async def test_a_host_that_hangs_is_noticed(
    sshd: Sshd, open_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = open_session(sshd.host())
    await one.connected(20)
    monkeypatch.setattr(channel, "SILENCE_SECONDS", 1.5)
    received = one.view.received
    await eventually(lambda: one.view.received > received)
    thaw = sshd.freeze()
    try:
        await eventually(lambda: one.view.link is Link.RECONNECTING)
        assert one.view.message == "The agent has said nothing for 2 s."
        # A new connection gets through: only the processes of the old one hang.
        await one.connected(20)
    finally:
        thaw()


async def test_forty_sessions_with_one_sshd(sshd: Sshd, client_home: Path, tmp_path: Path) -> None:
    """The usual MaxStartups and MaxSessions; nobody is told to wait for longer than it takes."""
    fleet = Fleet(Inventory(tmp_path / "hosts.toml"), Store(), YES)
    try:
        sessions = [fleet.add(sshd.host(f"box-{number}")) for number in range(40)]
        await asyncio.gather(*(one.connected(60) for one in sessions))
        assert {one.view.link for one in sessions} == {Link.LIVE}
        assert len({one.view.hello.pid for one in sessions if one.view.hello}) == 1
    finally:
        await fleet.close()
    assert {one.view.link for one in sessions} == {Link.IDLE}


async def test_a_fleet_follows_its_inventory(sshd: Sshd, client_home: Path) -> None:
    inventory = Inventory(client_home / "config" / "hosts.toml")
    inventory.add(sshd.host("one"))
    inventory.add(Host("two", "127.0.0.1", 1))
    fleet = Fleet(inventory, Store(), YES)
    try:
        fleet.start()
        assert list(fleet.store.hosts) == ["one", "two"]
        await fleet.session("one").connected(20)
        with pytest.raises(Unreachable, match="refuses"):
            await fleet.session("two").connected(20, patient=False)
        assert fleet.session("one") is fleet.add(sshd.host("one"))
        await fleet.remove("two")
        assert [one.name for one in fleet.sessions()] == list(fleet.store.hosts) == ["one"]
        with pytest.raises(UsageError, match="no host two"):
            fleet.session("two")
    finally:
        await fleet.close()
