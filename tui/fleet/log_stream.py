"""A log as a stream of bytes from an offset on: complete, in order, each byte once, whatever the link does.

What the host has already is read as ranges, several requests at a time; the rest is followed. What a follower
is not sent because it was slow is read as ranges again. A reader that stops costs a bounded amount of memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from agent import wire

from .errors import RequestRefused, Unreachable
from .patience import within
from .session import LogRange, Session

REQUESTS = 6
"""Ranges asked for at a time: what keeps a distant host's line full."""

PENDING_BYTES = 4 * 1024 * 1024
"""Followed bytes that wait to be consumed; what comes on top is dropped and read later."""

LOOK_SECONDS = 0.2
"""How often a follower looks whether the run has ended."""

RECONNECT_SECONDS = 120.0
"""How long reading waits for a lost host; following waits for ever."""


class Listener(Protocol):
    """Is told what happens to the connection; several streams may share one."""

    def lost(self, reason: str) -> None:
        """The host cannot be asked at the moment."""
        ...

    def back(self) -> None:
        """It can be asked again."""
        ...


class LogStream:
    """One stream of one attempt. Its methods raise RequestRefused (`no-run`, `no-stream`) and HostError."""

    def __init__(self, session: Session, run: str, attempt: int, stream: str, listener: Listener) -> None:
        self.stream = stream
        self._session = session
        self._key = (run, attempt, stream)
        self._listener = listener
        self._reconnect: float | None = RECONNECT_SECONDS

    async def size(self) -> tuple[int, bool]:
        """The file's size now, and whether it is final; a file that is still to come has none."""
        part = await self._read(0, 0)
        return (part.size, part.ended) if part else (0, False)

    async def tail(self, lines: int) -> int:
        """The offset at which the last `lines` lines begin; a last line without its newline counts."""
        position = end = (await self.size())[0]
        if lines == 0:
            return end
        missing = lines
        while position > 0:
            start = max(0, position - wire.MAX_CHUNK)
            data = await self._range(start, position)
            # The newline at the very end ends the last line: it does not begin another one.
            within = len(data) - 1 if position == end and data.endswith(b"\n") else len(data)
            while (found := data.rfind(b"\n", 0, within)) >= 0:
                missing -= 1
                if missing == 0:
                    return start + found + 1
                within = found
            position = start
        return 0

    async def read(self, offset: int) -> AsyncGenerator[bytes, None]:
        """What the file has now, from `offset` to its end."""
        size, _ = await self.size()
        async with aclosing(self._ranges(offset, size)) as pieces:
            async for data in pieces:
                yield data

    async def follow(self, offset: int) -> AsyncGenerator[bytes, None]:
        """Everything from `offset` on, as it is written, until the attempt is over and all of it is out."""
        self._reconnect = None
        async with aclosing(self.read(offset)) as pieces:
            async for data in pieces:
                offset += len(data)
                yield data
        inbox = _Inbox(offset)
        await self._session.follow_log(*self._key, offset, inbox)
        try:
            while not self._over():
                await inbox.wait(LOOK_SECONDS)
                if self._session.live:
                    self._listener.back()
                else:
                    self._listener.lost(self._session.view.message)
                while (data := inbox.take(offset)) or inbox.seen > offset:
                    if data:
                        offset += len(data)
                        yield data
                        continue
                    async with aclosing(self._ranges(offset, inbox.next())) as pieces:
                        async for data in pieces:
                            offset += len(data)
                            yield data
        finally:
            await self._session.unfollow_log(*self._key, inbox)
        while True:
            size, final = await self.size()
            async with aclosing(self._ranges(offset, size)) as pieces:
                async for data in pieces:
                    offset += len(data)
                    yield data
            if final and offset >= size:
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _over(self) -> bool:
        """Whether the attempt has ended, as far as is known here."""
        self._session.check()
        run, attempt, _ = self._key
        view = self._session.view.runs.get(run)
        if view is None:
            return self._session.live
        return view.info.attempt > attempt or view.info.state in wire.END_STATES

    async def _ranges(self, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """[start, end) in pieces."""
        asked: deque[asyncio.Task[bytes]] = deque()
        try:
            while asked or start < end:
                while start < end and len(asked) < REQUESTS:
                    stop = min(end, start + wire.MAX_CHUNK)
                    asked.append(asyncio.create_task(self._range(start, stop)))
                    start = stop
                yield await asked[0]
                asked.popleft()
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _range(self, start: int, end: int) -> bytes:
        """[start, end), which the file is known to have."""
        data = b""
        while start + len(data) < end:
            part = await self._read(start + len(data), end - start - len(data))
            if part is None or not part.data:
                raise RequestRefused(
                    "shrunk", f"The log {self.stream} is shorter than it was.", "It was cut on the host."
                )
            data += part.data
        return data

    async def _read(self, offset: int, length: int) -> LogRange | None:
        """One range, asked for again after each reconnect; None while the stream is still to come."""
        while True:
            try:
                return await self._session.read_log(*self._key, offset, length)
            except Unreachable as error:
                self._listener.lost(error.message)
                await self._session.connected(self._reconnect)
                self._listener.back()
            except RequestRefused as error:
                if error.code != "no-stream" or self._over():
                    raise
                return None


class _Inbox:
    """Takes what is followed; see `log_source.LogSink`."""

    def __init__(self, offset: int) -> None:
        self.seen = offset
        """The end of what the host has told us of."""
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._held = 0
        self._news = asyncio.Event()

    def data(self, offset: int, data: bytes) -> None:
        """Keep new bytes, if there is room."""
        self.seen = offset + len(data)
        self._news.set()
        if self._held + len(data) > PENDING_BYTES:
            self._pieces.clear()
            self._held = 0
            return
        self._pieces.append((offset, data))
        self._held += len(data)

    def gap(self, start: int, end: int) -> None:  # noqa: ARG002 (where it starts is known)
        """Take note that there is more to read."""
        self.seen = end
        self._news.set()

    async def wait(self, seconds: float) -> None:
        """Wait for news, at most so long."""
        try:
            await within(seconds, self._news.wait())
        except TimeoutError:
            pass
        self._news.clear()

    def take(self, offset: int) -> bytes:
        """The piece at `offset`, or nothing when it is not here."""
        while self._pieces and self._pieces[0][0] <= offset:
            start, data = self._pieces.popleft()
            self._held -= len(data)
            if start + len(data) > offset:
                return data[offset - start :]
        return b""

    def next(self) -> int:
        """Where the bytes that are here begin, or the end of what is known to exist."""
        return self._pieces[0][0] if self._pieces else self.seen
