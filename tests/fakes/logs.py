"""Logs without a host: in memory, with faults on demand, and a real file read by the agent's own code."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent import logs
from tui.fleet.errors import RequestRefused, Unreachable
from tui.fleet.log_source import CHUNK_BYTES, Condition, LogSink, LogSlice, SearchStep


class MemorySource:
    """A log in memory: `write` appends, `skip` appends without sending, `cut` makes the host unreachable."""

    def __init__(
        self, data: bytes = b"", *, label: str = "rank 0", ended: bool = False, absent: bool = False
    ) -> None:
        self.label = label
        self.content = bytearray(data)
        self.ended = ended
        self.absent = absent
        self.reads: list[tuple[int, int]] = []
        self.searches: list[tuple[str, int, bool]] = []
        self.sinks: dict[LogSink, int] = {}
        """Who follows, and up to where they were sent everything."""
        self.trouble = ""
        self.since: float | None = None
        self.search_limit = 1 << 20
        """Bytes that one search step looks at."""
        self.held: asyncio.Event | None = None
        """While set to an event, reads wait for it."""

    def write(self, data: bytes) -> None:
        """Append `data`, in pieces as the wire would carry them."""
        self.content += data
        self.absent = False
        if not self.trouble:
            self._send()

    def skip(self, data: bytes) -> None:
        """Append `data` and only say that it exists."""
        self.content += data
        for sink, offset in self.sinks.items():
            sink.gap(offset, len(self.content))
            self.sinks[sink] = len(self.content)

    def cut(self, trouble: str = "unreachable", since: float | None = None) -> None:
        """From now on nothing gets through."""
        self.trouble, self.since = trouble, since

    def mend(self) -> None:
        """The host is back: followers get what they missed."""
        self.trouble = ""
        self._send()

    def _send(self) -> None:
        for sink, sent in list(self.sinks.items()):
            for offset in range(sent, len(self.content), CHUNK_BYTES):
                sink.data(offset, bytes(self.content[offset : offset + CHUNK_BYTES]))
            self.sinks[sink] = len(self.content)

    async def read(self, offset: int, length: int) -> LogSlice:
        if self.held is not None:
            await self.held.wait()
        await self._ask()
        if self.absent:
            raise RequestRefused("no-stream", "there is no such stream")
        self.reads.append((offset, length))
        start = max(0, len(self.content) + offset) if offset < 0 else offset
        data = bytes(self.content[start : start + min(length, CHUNK_BYTES)])
        return LogSlice(start, data, len(self.content), self.ended)

    async def follow(self, offset: int, sink: LogSink) -> None:
        await self._ask()
        self.sinks[sink] = offset
        self._send()

    async def unfollow(self, sink: LogSink) -> None:
        self.sinks.pop(sink, None)
        await self._ask()

    async def search(self, text: str, offset: int, *, backward: bool, ignore_case: bool) -> SearchStep:
        await self._ask()
        self.searches.append((text, offset, backward))
        needle, content = text.encode(), bytes(self.content)
        if ignore_case:
            needle, content = needle.lower(), content.lower()
        if backward:
            low = max(0, offset - self.search_limit)
            at = content.rfind(needle, low, offset + len(needle) - 1)
            return SearchStep(at if at >= 0 else None, at if at >= 0 else low, at < 0 and low > 0)
        high = min(len(content), offset + self.search_limit)
        at = content.find(needle, offset, high + len(needle) - 1)
        return SearchStep(at if at >= 0 else None, at if at >= 0 else high, at < 0 and high < len(content))

    def condition(self) -> Condition:
        return Condition(self.trouble, self.since, self.ended)

    async def _ask(self) -> None:
        await asyncio.sleep(0)
        if self.trouble:
            raise Unreachable(f"the host is {self.trouble}")


class FileSource:
    """A real file, read and searched by the agent's own code."""

    def __init__(self, path: Path, *, label: str = "rank 0", ended: bool = False) -> None:
        self.label = label
        self.path = path
        self.ended = ended
        self._tasks: dict[LogSink, asyncio.Task[None]] = {}

    async def read(self, offset: int, length: int) -> LogSlice:
        part = await asyncio.to_thread(logs.read_range, str(self.path), offset, length)
        return LogSlice(part.offset, part.data, part.size, self.ended)

    async def follow(self, offset: int, sink: LogSink) -> None:
        self._tasks[sink] = asyncio.create_task(self._tail(offset, sink))

    async def _tail(self, offset: int, sink: LogSink) -> None:
        while True:
            part = logs.read_range(str(self.path), offset, CHUNK_BYTES)
            if part.data:
                sink.data(offset, part.data)
                offset += len(part.data)
            await asyncio.sleep(0 if len(part.data) == CHUNK_BYTES else 0.05)

    async def unfollow(self, sink: LogSink) -> None:
        task = self._tasks.pop(sink, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def search(self, text: str, offset: int, *, backward: bool, ignore_case: bool) -> SearchStep:
        found = await asyncio.to_thread(
            logs.search, str(self.path), text.encode(), offset, backward=backward, ignore_case=ignore_case
        )
        return SearchStep(found.offset, found.scanned_to, found.more)

    def condition(self) -> Condition:
        return Condition(ended=self.ended)
