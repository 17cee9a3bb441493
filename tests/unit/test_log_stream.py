"""A log as a stream: whatever the link and the agent do, every byte comes once and in order."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import eventually

from agent import wire
from tui.fleet import log_stream
from tui.fleet.errors import RequestRefused, Unreachable
from tui.fleet.log_stream import PENDING_BYTES, LogStream
from tui.fleet.session import LogRange


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower looks for the end all the time, not a few times a second."""
    monkeypatch.setattr(log_stream, "LOOK_SECONDS", 0.001)


class Listener:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def lost(self, reason: str) -> None:
        self.told.append("lost")

    def back(self) -> None:
        self.told.append("back")


class FakeSession:
    """A session with one log in memory, whose link can be cut."""

    def __init__(self, data: bytes = b"", *, over: bool = False) -> None:
        self.file = bytearray(data)
        self.live = True
        self.missing = False
        self.sinks: list[Any] = []
        self.info = SimpleNamespace(attempt=1, state="finished" if over else "running")
        self.view = SimpleNamespace(runs={"r": SimpleNamespace(info=self.info)}, message="gone", ready=True)
        self.reads = 0
        self.most_at_once = 0
        self._at_once = 0
        self._back = asyncio.Event()

    def check(self) -> None: ...

    async def connected(self, timeout: float | None = None) -> None:
        while not self.live:
            self._back.clear()
            await self._back.wait()

    def cut(self) -> None:
        self.live = False

    def mend(self) -> None:
        self.live = True
        self._back.set()

    async def read_log(self, run: str, attempt: int, stream: str, offset: int, length: int) -> LogRange:
        self.reads += 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(0)
            if not self.live:
                raise Unreachable("lost")
            if self.missing:
                raise RequestRefused("no-stream", "none")
            assert length <= wire.MAX_CHUNK
            size = len(self.file)
            data = bytes(self.file[offset : offset + length])
            return LogRange(offset, data, size, self.info.state in wire.END_STATES)
        finally:
            self._at_once -= 1

    async def follow_log(self, run: str, attempt: int, stream: str, offset: int, sink: Any) -> None:
        self.sinks.append(sink)
        if len(self.file) > offset:
            sink.data(offset, bytes(self.file[offset:]))

    async def unfollow_log(self, run: str, attempt: int, stream: str, sink: Any) -> None:
        self.sinks.remove(sink)

    def write(self, data: bytes, *, tell: bool = True) -> None:
        offset = len(self.file)
        self.file += data
        for sink in self.sinks:
            if tell:
                sink.data(offset, data)
            else:
                sink.gap(offset, offset + len(data))


def stream(session: FakeSession, listener: Listener | None = None) -> LogStream:
    return LogStream(session, "r", 1, "rank0", listener or Listener())  # type: ignore[arg-type]


async def all_of(chunks: Any) -> bytes:
    return b"".join([chunk async for chunk in chunks])


async def test_reading_takes_what_is_there_several_ranges_at_a_time() -> None:
    data = random.Random(1).randbytes(wire.MAX_CHUNK * 10 + 17)
    session = FakeSession(data)
    assert await all_of(stream(session).read(0)) == data
    assert await all_of(stream(session).read(len(data) - 5)) == data[-5:]
    assert session.most_at_once > 2


async def test_reading_waits_out_a_lost_link_and_says_so() -> None:
    data = bytes(wire.MAX_CHUNK * 3)
    session, listener = FakeSession(data), Listener()
    session.cut()
    reading = asyncio.create_task(all_of(stream(session, listener).read(0)))
    await eventually(lambda: listener.told)
    session.mend()
    assert await reading == data
    assert listener.told == ["lost", "back"]


async def test_a_stream_that_is_still_to_come_is_empty_and_can_be_followed() -> None:
    session = FakeSession()
    session.missing = True
    assert await all_of(stream(session).read(0)) == b""
    following = asyncio.create_task(all_of(stream(session).follow(0)))
    await eventually(lambda: session.sinks)
    session.missing = False
    session.write(b"late")
    session.info.state = "finished"
    assert await following == b"late"
    assert session.sinks == []


async def test_a_stream_that_will_never_come_is_refused() -> None:
    session = FakeSession(over=True)
    session.missing = True
    with pytest.raises(RequestRefused):
        await all_of(stream(session).read(0))


async def test_a_reader_that_is_slow_gets_what_did_not_fit_by_reading_it() -> None:
    session = FakeSession(b"start ")
    chunks = stream(session).follow(0)
    got = await anext(chunks)
    waiting = asyncio.ensure_future(anext(chunks))
    await eventually(lambda: session.sinks)
    piece = bytes(wire.MAX_CHUNK)
    for number in range(2 * PENDING_BYTES // len(piece)):
        session.write(b"%4d" % number + piece[4:])
    session.info.state = "failed"
    got += await waiting + await all_of(chunks)
    assert got == session.file


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["write", "gap", "big", "cut", "mend", "turn"]), max_size=40),
    st.integers(0, 2**32),
)
def test_following_is_complete_whatever_happens(steps: list[str], seed: int) -> None:
    rng = random.Random(seed)

    async def scenario() -> None:
        session = FakeSession(rng.randbytes(rng.randrange(300)))
        following = asyncio.create_task(all_of(stream(session).follow(0)))
        for step in steps:
            if step in ("write", "gap"):
                # What is written while the link is cut is told by nobody: the session tells it afterwards.
                told = step == "write" and session.live
                before = len(session.file)
                if session.live:
                    session.write(rng.randbytes(rng.randrange(1, 200)), tell=told)
                else:
                    session.file += rng.randbytes(50)
                    missed = (before, bytes(session.file[before:]))
                    for sink in session.sinks:
                        sink.data(*missed)
            elif step == "big":
                session.write(rng.randbytes(wire.MAX_CHUNK + 5), tell=rng.random() < 0.5)
            elif step == "cut":
                session.cut()
            elif step == "mend":
                session.mend()
            else:
                for _ in range(5):
                    await asyncio.sleep(0)
        session.mend()
        session.write(b"the end")
        session.info.state = rng.choice(["finished", "failed", "stopped"])
        assert await asyncio.wait_for(following, 20) == session.file
        assert session.sinks == []

    asyncio.run(scenario())


@given(
    st.binary(max_size=400).map(lambda data: data.replace(b"a", b"\n")),
    st.integers(0, 12),
    st.sampled_from([1, 7, 64, wire.MAX_CHUNK]),
)
def test_the_tail_is_that_of_the_tool_tail(data: bytes, lines: int, chunk: int) -> None:
    async def scenario() -> int:
        original = wire.MAX_CHUNK
        wire.MAX_CHUNK = chunk
        try:
            return await stream(FakeSession(data)).tail(lines)
        finally:
            wire.MAX_CHUNK = original

    pieces = data.splitlines(keepends=True) if b"\r" not in data else None
    whole = [line + b"\n" for line in data.split(b"\n")]
    whole[-1] = whole[-1][:-1]
    expected = [line for line in whole if line]
    assert pieces is None or b"".join(pieces) == b"".join(expected)
    start = asyncio.run(scenario())
    assert data[start:] == b"".join(expected[max(0, len(expected) - lines) :])
