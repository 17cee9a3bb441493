"""A merged log has every line of its streams, in their order, wherever one enters it."""

from __future__ import annotations

import asyncio
import random

import pytest
from fakes.logs import MemorySource
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import eventually

from tui.fleet import log_arrivals, log_history
from tui.fleet.errors import EncampError
from tui.fleet.log_feed import LogFeed, Toward
from tui.fleet.log_merge import MergedSource
from tui.fleet.log_window import Line


class Collector:
    """A sink that keeps what it gets, with a mark where bytes were left out."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, bytes]] = []
        self.gaps: list[tuple[int, int]] = []

    def data(self, offset: int, data: bytes) -> None:
        self.parts.append((offset, data))

    def gap(self, start: int, end: int) -> None:
        self.gaps.append((start, end))


def log(rank: int, chance: random.Random, count: int, longest: int = 60) -> bytes:
    return b"".join(b"r%d %d " % (rank, n) + b"." * chance.randint(0, longest) + b"\n" for n in range(count))


async def read_all(source: MergedSource, start: int = 0) -> bytes:
    part = await source.read(start, 1)
    data = b""
    while start + len(data) < part.size:
        part = await source.read(start + len(data), 100_000)
        assert part.data
        data += part.data
    return data


@given(
    st.lists(st.integers(0, 120), min_size=1, max_size=4),
    st.integers(0, 2**32),
    st.sampled_from([200, 1_000, 64 * 1024]),
)
@settings(max_examples=20, deadline=None)
def test_history_has_every_line_once_in_its_streams_order(
    counts: list[int], seed: int, slice_bytes: int
) -> None:
    async def check() -> None:
        chance = random.Random(seed)
        logs = [log(rank, chance, count) for rank, count in enumerate(counts)]
        source = MergedSource([MemorySource(data) for data in logs])
        whole = await read_all(source)
        lines = whole.splitlines(keepends=True)
        for rank, data in enumerate(logs):
            own = [line for line in lines if line.startswith(b"r%d " % rank)]
            assert b"".join(own) == data
        assert sum(map(len, logs)) == len(whole)
        # Anywhere else it is the same log.
        for _ in range(10):
            at = chance.randrange(len(whole) + 1)
            part = await source.read(at, chance.randint(1, 5_000))
            assert whole[at : at + len(part.data)] == part.data
        offset = 0
        for line in lines:
            await source.read(offset, 1)
            assert source.origin(offset) == int(line[1:2])
            offset += len(line)
        for needle in ("r0 1", "5 ", "no such line"):
            for _ in range(4):
                at = chance.randrange(len(whole) + 1)
                step = await source.search(needle, at, backward=False, ignore_case=False)
                assert step.offset == _none(whole.find(needle.encode(), at))
                step = await source.search(needle, at, backward=True, ignore_case=False)
                assert step.offset == _none(whole.rfind(needle.encode(), 0, at + len(needle) - 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_history, "SLICE_BYTES", slice_bytes)
        asyncio.run(check())


def _none(at: int) -> int | None:
    return at if at >= 0 else None


async def test_ranks_that_do_the_same_work_line_up() -> None:
    logs = [b"".join(b"rank %d step %04d\n" % (rank, step) for step in range(5_000)) for rank in range(4)]
    source = MergedSource([MemorySource(data) for data in logs])
    whole = await read_all(source)
    steps = [int(line.split()[3]) for line in whole.splitlines()]
    assert steps == sorted(steps)


async def test_giant_lines_are_not_read_through() -> None:
    sources = [
        MemorySource(b"a first\n" + b"x" * 5_000_000 + b"\na last\n"),
        MemorySource(b"b first\n" * 1_000),
        MemorySource(b""),
    ]
    for one in sources:
        one.search_limit = 1 << 30
    source = MergedSource(sources)
    feed = LogFeed(source)
    task = asyncio.create_task(feed.run())
    try:
        await eventually(lambda: feed.window.size > 5_000_000)
        places = [0, 4_000, 2_500_000, feed.window.size - 1]

        def all_known() -> bool:
            for place in places:
                if not isinstance(feed.window.item_at(place), Line):
                    feed.want(place, Toward.AROUND)
                    return False
            return True

        await eventually(all_known)
        texts = {
            feed.window.shown(item).text[:10]
            for item in map(feed.window.item_at, places)
            if isinstance(item, Line)
        }
        assert {"x" * 10} < texts
        assert sum(length for one in sources for _, length in one.reads) < 3_000_000
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_what_comes_stands_in_the_order_in_which_it_came() -> None:
    sources = [MemorySource(b"old 0\n"), MemorySource(b"old 1\n"), MemorySource(absent=True)]
    source, sink = MergedSource(sources), Collector()
    start = (await source.read(-100, 100)).size
    await source.follow(start, sink)
    sources[1].write(b"one\ntw")
    sources[0].write(b"zero\n")
    sources[1].write(b"o\nthr")
    sources[2].write(b"born\n")
    assert b"".join(data for _, data in sink.parts) == b"one\nzero\ntwo\nborn\n"
    assert [source.origin(offset) for offset, _ in sink.parts] == [1, 0, 1, 2]
    assert await read_all(source, start) == b"one\nzero\ntwo\nborn\n"
    assert (await source.read(start + 5, 3)).data == b"ero"
    for needle, at in (("two", 9), ("o", 0), ("born", 13)):
        assert (await source.search(needle, start, backward=False, ignore_case=False)).offset == start + at
    assert (await source.search("o", start + 9, backward=True, ignore_case=False)).offset == start + 7
    assert (await source.search("old", source.size, backward=True, ignore_case=False)).offset == 6
    assert (await source.search("thr", start, backward=False, ignore_case=False)).offset is None
    await source.unfollow(sink)
    assert not any(one.sinks for one in sources)


async def test_a_line_without_end_is_shown_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_arrivals, "PARTIAL_SECONDS", 0.02)
    sources = [MemorySource(), MemorySource()]
    source, sink = MergedSource(sources), Collector()
    await source.follow(0, sink)
    sources[0].write(b"\r 50%")
    sources[1].write(b"Password: ")
    await eventually(lambda: sink.parts)
    assert sink.parts == [(0, b"Password: \n")]
    sources[1].write(b"done\n")
    sources[0].write(b"\r100%\n")
    assert sink.parts[1:] == [(11, b"done\n"), (16, b"\r 50%\r100%\n")]
    assert await read_all(source) == b"Password: \ndone\n\r 50%\r100%\n"
    assert [source.origin(offset) for offset in (0, 10, 11, 16)] == [1, 1, 1, 0]
    newlines = [10, 15, 26]
    for offset in range(28):
        after = (await source.search("\n", offset, backward=False, ignore_case=False)).offset
        assert after == next((at for at in newlines if at >= offset), None)
        before = (await source.search("\n", offset, backward=True, ignore_case=False)).offset
        assert before == next((at for at in reversed(newlines) if at < offset), None)
    await source.unfollow(sink)


async def test_gaps_are_passed_on_and_can_be_read() -> None:
    sources = [MemorySource(b"a\n"), MemorySource(b"b\n")]
    source, sink = MergedSource(sources), Collector()
    await source.follow((await source.read(-10, 10)).size, sink)
    sources[0].write(b"begun")
    sources[0].skip(b" and lost\nmore lost\nand th")
    sources[0].write(b"ere\n")
    sources[1].write(b"fine\n")
    assert sink.gaps == [(10, 37)]
    assert await read_all(source, 4) == b"begun\n and lost\nmore lost\nand th\nere\nfine\n"
    await source.unfollow(sink)


async def test_an_endless_bar_at_the_end_of_the_history_is_one_line() -> None:
    bar = b"".join(b"\r step %d" % n for n in range(40_000))
    sources = [MemorySource(b"start\n" + bar), MemorySource(b"other\n")]
    feed = LogFeed(MergedSource(sources))
    task = asyncio.create_task(feed.run())
    try:
        await eventually(lambda: feed.window.size >= len(bar))
        sources[0].write(b"\r step 40000\nnext\n")
        sources[1].write(b"more\n")

        def shown() -> list[str]:
            texts, offset = [], 0
            while offset < feed.window.size:
                item = feed.window.item_at(offset)
                if isinstance(item, Line):
                    texts.append(feed.window.shown(item).text)
                else:
                    feed.want(offset, Toward.LATER)
                    return []
                offset = item.end
            return texts

        assert await eventually(shown) == ["start", "other", " step 39999", " step 40000", "next", "more"]
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_what_is_too_old_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_arrivals, "MAX_BLOCKS", 8)
    sources = [MemorySource(), MemorySource()]
    source, sink = MergedSource(sources), Collector()
    await source.follow(0, sink)
    for number in range(40):
        sources[number % 2].write(b"%d\n" % number)
    with pytest.raises(EncampError, match="kept"):
        await source.read(0, 10)
    assert (await source.read(source.size - 6, 6)).data == b"38\n39\n"
    assert source.origin(0) is None
    await source.unfollow(sink)


async def test_trouble_and_end_are_those_of_the_streams() -> None:
    sources = [MemorySource(), MemorySource()]
    source = MergedSource(sources)
    sources[0].ended = True
    assert not source.condition().ended
    sources[1].ended = True
    assert source.condition().ended
    sources[1].cut("unreachable", 5.0)
    assert (source.condition().trouble, source.condition().since) == ("unreachable", 5.0)
