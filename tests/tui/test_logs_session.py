"""The log engine on a real host: OpenSSH, the real agent, a session that is cut, and files that grow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from ssh.faults import link_to
from ssh.sshd import Sshd
from waiting import eventually

from agent import process, wire
from tui.fleet import log_feed, session
from tui.fleet.log_feed import LogFeed, Toward
from tui.fleet.log_merge import MergedSource
from tui.fleet.log_source import LogSource, SessionSource
from tui.fleet.log_window import Line
from tui.fleet.prompts import NoPrompts
from tui.fleet.session import Session
from tui.fleet.store import Store

pytestmark = pytest.mark.sshd

SPEC = wire.LaunchSpec("run-1", "run", "p", "ddp", "script", "/nowhere.py", nproc_per_node=2)


@pytest.fixture
def attempt(sshd: Sshd) -> Iterator[Path]:
    """The folder of an attempt that runs on the host: any process will do as its supervisor."""
    living = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    folder = sshd.home / ".encamp" / "runs" / "run-1" / "attempts" / "1"
    folder.mkdir(parents=True)
    documents = {
        folder.parent.parent / "run.json": {
            "run": "run-1", "name": "run", "profile": "p", "strategy": "ddp", "created": time.time(),
        },
        folder / "spec.json": {**wire.to_json(SPEC), "resolved": {"nproc_per_node": 2}},
        folder / "supervisor.json": {
            "pid": living.pid, "start_time": process.start_time(living.pid),
            "boot_id": process.boot_id(), "started": time.time(),
        },
    }  # fmt: skip
    for path, document in documents.items():
        path.write_text(json.dumps(document))
    try:
        yield folder
    finally:
        living.kill()
        living.wait()


@contextlib.asynccontextmanager
async def connected(sshd: Sshd, port: int) -> AsyncIterator[Session]:
    one = Session(sshd.host(port=port), Store(), NoPrompts(accept_new_host_key=True))
    task = asyncio.create_task(one.run())
    try:
        await one.connected(20)
        yield one
    finally:
        task.cancel()
        await asyncio.wait([task])


@contextlib.asynccontextmanager
async def feeding(source: LogSource) -> AsyncIterator[LogFeed]:
    feed = LogFeed(source)
    task = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        task.cancel()
        await asyncio.wait([task])


def text_at(feed: LogFeed, offset: int, toward: Toward) -> str | None:
    """The line at `offset`; asks for it where it is not known."""
    if not 0 <= offset < feed.window.size:
        return None
    item = feed.window.item_at(offset)
    if isinstance(item, Line):
        return feed.window.shown(item).text
    feed.want(offset, toward)
    return None


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


async def test_follow_cut_resume_page_and_search(
    sshd: Sshd, client_home: Path, attempt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "FIRST_RETRY", 0.1)
    monkeypatch.setattr(log_feed, "BACKLOG_SECONDS", 0.0)
    log = attempt / "rank1.log"
    append(log, b"".join(b"step %06d\n" % number for number in range(50_000)))
    async with (
        link_to(sshd.port) as link,
        connected(sshd, link.port) as one,
        feeding(SessionSource(one, "run-1", 1, "rank1")) as feed,
    ):
        end = log.stat().st_size
        await eventually(lambda: text_at(feed, end - 1, Toward.AROUND) == "step 049999")
        append(log, b"followed\n")
        await eventually(lambda: text_at(feed, end, Toward.AROUND) == "followed")
        assert feed.window.arrived(end) is not None
        # Cut while it grows: all of it is there when the host is back, and nothing twice.
        link.cut()
        await eventually(lambda: feed.condition().trouble)
        append(log, b"".join(b"in the outage %06d\n" % number for number in range(20_000)))
        await eventually(lambda: feed.window.size == log.stat().st_size)
        assert not feed.condition().trouble
        append(log, b"after it\n")
        await eventually(lambda: feed.window.size == log.stat().st_size)
        content = log.read_bytes()
        assert feed.window.known.read(end, len(content)) == content[end:]
        assert feed.window.arrived(end + 20) is None
        # The first byte, and anywhere between.
        await eventually(lambda: text_at(feed, 0, Toward.LATER) == "step 000000")
        await eventually(lambda: text_at(feed, 12 * 25_000, Toward.AROUND) == "step 025000")
        found = await feed.find("STEP 031234", 0, backward=False, ignore_case=True)
        assert found == 12 * 31_234
        assert await feed.find("step 031234", 12 * 31_234, backward=True, ignore_case=False) is None
        assert await feed.find("000003", len(content), backward=True, ignore_case=False) == content.rindex(
            b"000003"
        )


async def test_a_huge_line_and_a_rank_without_a_log(sshd: Sshd, client_home: Path, attempt: Path) -> None:
    append(attempt / "rank0.log", b"before\n" + b"z" * 10_000_000 + b"\nafter\n")
    async with connected(sshd, sshd.port) as one:
        async with feeding(SessionSource(one, "run-1", 1, "rank0")) as feed:
            await eventually(lambda: feed.window.size)
            await eventually(lambda: text_at(feed, feed.window.size - 1, Toward.EARLIER) == "after")
            await eventually(lambda: text_at(feed, feed.window.size - 8, Toward.EARLIER) == "z" * 4096)
            await eventually(lambda: text_at(feed, 3, Toward.EARLIER) == "before")
            assert feed.window.known.held < 400_000
        async with feeding(SessionSource(one, "run-1", 1, "rank1")) as feed:
            await eventually(lambda: feed.state is log_feed.FeedState.FOLLOWING)
            append(attempt / "rank1.log", b"late\n")
            await eventually(lambda: text_at(feed, 0, Toward.LATER) == "late")


async def test_merged(sshd: Sshd, client_home: Path, attempt: Path) -> None:
    for rank in range(2):
        append(
            attempt / f"rank{rank}.log",
            b"".join(b"rank %d step %05d\n" % (rank, step) for step in range(10_000)),
        )
    append(attempt / "launcher.log", b"launching\n")
    async with connected(sshd, sshd.port) as one:
        sources = [SessionSource(one, "run-1", 1, stream) for stream in ("launcher", "rank0", "rank1")]
        merged = MergedSource(sources)
        async with feeding(merged) as feed:
            await eventually(lambda: feed.state is log_feed.FeedState.FOLLOWING)
            size = feed.window.size
            append(attempt / "rank1.log", b"one\n")
            await eventually(lambda: text_at(feed, size, Toward.LATER) == "one")
            append(attempt / "rank0.log", b"zero\n")
            await eventually(lambda: text_at(feed, size + 4, Toward.LATER) == "zero")
            assert [merged.origin(offset) for offset in (size, size + 4)] == [2, 1]
            await eventually(lambda: text_at(feed, 0, Toward.LATER) == "launching")
            await eventually(lambda: text_at(feed, 10, Toward.LATER) == "rank 0 step 00000")
            at = await feed.find("rank 1 step 05000", 0, backward=False, ignore_case=False)
            assert at is not None
            await eventually(lambda: text_at(feed, at, Toward.AROUND) == "rank 1 step 05000")
