"""A feed fills the window with what is written and what is looked at, whatever the host does meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fakes.logs import FileSource, MemorySource
from waiting import eventually

from tui.fleet import log_feed
from tui.fleet.errors import Unreachable
from tui.fleet.log_feed import FeedState, LogFeed, Toward
from tui.fleet.log_source import CHUNK_BYTES, LogSource
from tui.fleet.log_window import Hole, Line


def lines(count: int, start: int = 0) -> bytes:
    return b"".join(
        b"line %06d of the log, so many words\n" % number for number in range(start, start + count)
    )


@asynccontextmanager
async def running(source: LogSource, **options: object) -> AsyncIterator[LogFeed]:
    feed = LogFeed(source, **options)  # type: ignore[arg-type]
    task = asyncio.create_task(feed.run())
    try:
        await eventually(lambda: task.done() or feed.state is FeedState.FOLLOWING or feed.problem, 5)
        yield feed
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert feed.state is FeedState.CLOSED


def text_at(feed: LogFeed, offset: int) -> str | None:
    item = feed.window.item_at(offset)
    return feed.window.shown(item).text if isinstance(item, Line) else None


async def wanted(feed: LogFeed, offset: int, toward: Toward) -> str:
    """Ask for a line as a view would: at every look as long as it is not there."""

    def look() -> str | None:
        text = text_at(feed, offset)
        if text is None:
            feed.want(offset, toward)
        return text

    return str(await eventually(look, 10, f"the line at {offset}"))


async def test_opens_at_the_end_and_follows() -> None:
    source = MemorySource(lines(10_000))
    async with running(source) as feed:
        assert feed.window.size == len(source.content)
        assert source.reads == [(-CHUNK_BYTES, CHUNK_BYTES)]
        source.write(b"new\n")
        assert text_at(feed, feed.window.size - 1) == "new"
        assert feed.window.arrived(feed.window.size - 1) == pytest.approx(time.time(), abs=5)
        assert feed.window.arrived(feed.window.size - 5) is None
    assert not source.sinks


async def test_a_stream_that_does_not_exist_yet_is_followed_from_its_start() -> None:
    source = MemorySource(absent=True)
    async with running(source) as feed:
        assert feed.absent
        source.write(b"first\n")
        assert not feed.absent
        assert text_at(feed, 0) == "first"


async def test_an_ended_log_is_not_followed() -> None:
    source = MemorySource(lines(3), ended=True)
    async with running(source) as feed:
        assert feed.ended
        assert not source.sinks
        assert text_at(feed, 0) == "line 000000 of the log, so many words"


@pytest.mark.parametrize("toward", list(Toward))
async def test_any_line_can_be_fetched(toward: Toward) -> None:
    source = MemorySource(lines(20_000))
    async with running(source) as feed:
        length = len(lines(1))
        for number in (0, 1, 4_000, 12_345, 19_999, 0):
            assert (
                await wanted(feed, number * length + 5, toward)
                == f"line {number:06d} of the log, so many words"
            )


async def test_walking_backwards_reaches_the_first_byte_in_bounded_memory() -> None:
    source = MemorySource(lines(20_000))
    async with running(source, max_bytes=300_000) as feed:
        offset = feed.window.size
        seen = 0
        while offset > 0:
            await wanted(feed, offset - 1, Toward.EARLIER)
            item = feed.window.item_at(offset - 1)
            assert isinstance(item, Line)
            offset = item.start
            feed.window.known.focus = (offset, offset + 4_000)
            seen += 1
        assert seen == 20_000
        assert feed.window.known.held <= 300_000
        assert len(source.reads) < 3 * len(source.content) / CHUNK_BYTES


async def test_a_gap_is_filled_when_somebody_looks() -> None:
    source = MemorySource(lines(10))
    async with running(source) as feed:
        source.skip(lines(10_000, 10))
        source.write(lines(5, 10_010))
        assert isinstance(feed.window.item_at(len(source.content) - 200_000), Hole)
        reads = len(source.reads)
        assert await wanted(feed, len(lines(10)), Toward.LATER) == "line 000010 of the log, so many words"
        assert len(source.reads) == reads + 1
        assert feed.window.arrived(len(lines(10))) is None


async def test_a_huge_line_is_skipped_not_fetched() -> None:
    source = MemorySource(b"before\n" + b"z" * 30_000_000 + b"\nafter\n" + lines(100))
    async with running(source) as feed:
        end = 7 + 30_000_000
        assert await wanted(feed, end, Toward.EARLIER) == "z" * 4096
        assert await wanted(feed, 6, Toward.EARLIER) == "before"
        line = feed.window.item_at(end)
        assert isinstance(line, Line)
        assert feed.window.shown(line).note == "… 30.0 MB line, showing 4 KiB"
        assert sum(length for _, length in source.reads) < 10 * CHUNK_BYTES
    async with running(source) as feed:
        assert await wanted(feed, 3, Toward.LATER) == "before"
        assert await wanted(feed, 7, Toward.LATER) == "z" * 4096
        assert await wanted(feed, end + 1, Toward.LATER) == "after"


async def test_an_unended_huge_line_is_skipped_too() -> None:
    source = MemorySource(b"before\n" + b"z" * 5_000_000)
    async with running(source) as feed:
        assert await wanted(feed, 4_000_000, Toward.EARLIER) == "z" * 4096
        source.write(b"!\nafter\n")
        assert text_at(feed, feed.window.size - 2) == "after"
        assert text_at(feed, 4_000_000) == "z" * 4096


async def test_an_outage_is_survived_and_its_bytes_have_no_arrival_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_feed, "FIRST_RETRY", 60.0)
    monkeypatch.setattr(log_feed, "BACKLOG_SECONDS", 0.0)
    source = MemorySource(lines(10_000))
    async with running(source) as feed:
        source.write(b"seen\n")
        source.cut("unreachable")
        assert feed.condition().trouble == "unreachable"
        feed.want(0, Toward.LATER)
        await eventually(lambda: feed.problem, 5)
        backlog = feed.window.size
        source.write(lines(6_000))
        source.mend()
        assert feed.condition().trouble == ""  # this is what makes it try again at once
        await eventually(lambda: feed.problem is None and isinstance(feed.window.item_at(0), Line), 5)
        assert feed.window.size == len(source.content)
        assert feed.window.arrived(backlog - 1) is not None
        assert feed.window.arrived(backlog) is None
        source.write(b"seen again\n")
        assert feed.window.arrived(feed.window.size - 1) is not None


async def test_a_host_that_is_away_at_first_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_feed, "FIRST_RETRY", 0.01)
    source = MemorySource(lines(5))
    source.cut()
    async with running(source) as feed:
        assert isinstance(feed.problem, Unreachable)
        source.mend()
        await eventually(lambda: feed.state is FeedState.FOLLOWING, 5)
        assert feed.problem is None


async def test_a_wish_replaces_the_one_before() -> None:
    source = MemorySource(lines(30_000))
    async with running(source) as feed:
        source.held = asyncio.Event()
        feed.want(0, Toward.LATER)
        await asyncio.sleep(0)
        for offset in range(100_000, 600_000, 1_000):
            feed.want(offset, Toward.LATER)
        source.held.set()
        await eventually(lambda: feed.window.known.has(599_000), 5)
        assert len(source.reads) <= 4


@pytest.mark.parametrize("backward", [False, True])
async def test_finds_what_is_not_loaded(backward: bool) -> None:
    data = lines(1_000) + b"RuntimeError: here\n" + lines(200_000)
    source = MemorySource(data)
    async with running(source) as feed:
        progress: list[int] = []
        at = data.index(b"RuntimeError")
        start = len(data) if backward else 0
        found = await feed.find(
            "runtimeerror", start, backward=backward, ignore_case=True, on_progress=progress.append
        )
        assert found == at
        assert progress
        assert await feed.find("runtimeerror", start, backward=backward, ignore_case=False) is None
        # What is loaded is not asked for.
        asked = len(source.searches)
        assert await feed.find("line 199999", len(data), backward=True, ignore_case=False) is not None
        assert len(source.searches) == asked


async def test_search_reports_that_the_host_cannot_be_asked() -> None:
    source = MemorySource(lines(50_000))
    async with running(source) as feed:
        source.cut()
        with pytest.raises(Unreachable):
            await feed.find("line 000001", 0, backward=False, ignore_case=False)
        assert (
            await feed.find("line 049999", len(source.content), backward=True, ignore_case=False) is not None
        )


async def test_a_real_file_is_followed_fetched_and_searched(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_bytes(lines(20_000))
    async with running(FileSource(path)) as feed:
        with path.open("ab") as file:
            file.write(b"fresh\nhalf")
        await eventually(lambda: text_at(feed, feed.window.size - 1) == "half", 5)
        with path.open("ab") as file:
            file.write(b" done\n")
        await eventually(lambda: text_at(feed, feed.window.size - 1) == "half done", 5)
        assert await wanted(feed, 0, Toward.AROUND) == "line 000000 of the log, so many words"
        assert await feed.find("line 010000", 0, backward=False, ignore_case=False) == 10_000 * len(lines(1))


async def test_fetched_bytes_are_announced() -> None:
    calls: list[int] = []
    announced: Callable[[], None] = lambda: calls.append(1)  # noqa: E731
    async with running(MemorySource(lines(9_000)), on_fetched=announced) as feed:
        before = len(calls)
        await wanted(feed, 0, Toward.LATER)
        assert len(calls) > before
