"""Several logs as one: a source whose lines come from many streams, each line whole.

First stands what was written before we looked, in the order of `log_history`; then what comes while we
follow, in the order in which it arrives. The merged log has offsets of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from .errors import EncampError
from .log_arrivals import Blocks, Inlet
from .log_history import History, find
from .log_source import CHUNK_BYTES, Condition, LogSink, LogSlice, LogSource, SearchStep

BLOCKS_PER_READ = 32


class MergedSource:
    """The lines of several sources as one log; `origin` says from which one a line is."""

    def __init__(self, sources: Sequence[LogSource], label: str = "all ranks") -> None:
        self.label = label
        self._history = History(sources)
        self._streams = self._history.streams
        self._opening = asyncio.Lock()
        self._open = False
        self._blocks = Blocks()
        self._inlets: dict[int, Inlet] = {}
        self._sink: LogSink | None = None

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._history.size + self._blocks.end

    def origin(self, offset: int) -> int | None:
        """Index of the source of the line at `offset`, which was read before; None when that is forgotten."""
        if offset < self._history.size:
            return self._history.origin(offset)
        index = self._blocks.find(offset - self._history.size)
        return self._blocks.streams[index] if index >= 0 else None

    # --- as a source ----------------------------------------------------------------------------------

    async def read(self, offset: int, length: int) -> LogSlice:
        """See `LogSource`. Often less than asked for, as parts of it are in different places."""
        await self._start()
        if offset < 0:
            offset = await self._tail(min(length, -offset))
        if offset < self._history.size:
            data = await self._history.read(offset, min(length, CHUNK_BYTES))
        else:
            data = await self._read_blocks(offset - self._history.size, length)
        return LogSlice(offset, data, self.size, self.condition().ended)

    async def follow(self, offset: int, sink: LogSink) -> None:  # noqa: ARG002
        """See `LogSource`. Everything up to `size` is to be read; `offset` is not looked at."""
        await self._start()
        self._sink = sink
        for index, stream in enumerate(self._streams):
            if index not in self._inlets:
                inlet = Inlet(self, index, stream.end)
                if stream.follow_from > stream.end:
                    inlet.gap(stream.end, stream.follow_from)
                self._inlets[index] = inlet
                await stream.source.follow(stream.follow_from, inlet)

    async def unfollow(self, sink: LogSink) -> None:
        """See `LogSource`."""
        if sink is self._sink:
            self._sink = None
        while self._inlets:
            index, inlet = self._inlets.popitem()
            inlet.close()
            await self._streams[index].source.unfollow(inlet)

    async def search(self, text: str, offset: int, *, backward: bool, ignore_case: bool) -> SearchStep:
        """See `LogSource`. Every stream is searched from the place that corresponds to `offset`."""
        await self._start()
        reals = await self._reals_at(offset)
        found = await asyncio.gather(
            *(
                find(stream.source, text, real, backward=backward, ignore_case=ignore_case)
                for stream, real in zip(self._streams, reals, strict=True)
            )
        )
        places = [await self._place_of(index, real) for index, real in enumerate(found) if real is not None]
        known = [place for place in places if place is not None]
        if text == "\n":
            known += self._own_newlines(offset, backward=backward)
        if not known:
            return SearchStep(None, 0 if backward else self.size, False)
        best = max(known) if backward else min(known)
        return SearchStep(best, best, False)

    def condition(self) -> Condition:
        """See `LogSource`: in trouble when one of the streams is, ended when all are."""
        conditions = [stream.source.condition() for stream in self._streams]
        ended = all(condition.ended for condition in conditions)
        for condition in conditions:
            if condition.trouble:
                return Condition(condition.trouble, condition.since, ended)
        return Condition(ended=ended)

    # --- what the inlets pass on ----------------------------------------------------------------------

    def arrived(self, index: int, real: int, data: bytes, extra: bytes) -> None:
        """Lines of a stream came in."""
        start = self._history.size + self._blocks.add(index, real, len(data), len(extra))
        if self._sink is not None:
            self._sink.data(start, data + extra)

    def skipped(self, index: int, start: int, end: int) -> None:
        """A range of a stream was not sent; here it ends in a newline."""
        begin = self._history.size + self._blocks.add(index, start, end - start, 1)
        if self._sink is not None:
            self._sink.gap(begin, self.size)

    # --- inside ---------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """See how long the streams are: what is there now is history."""
        async with self._opening:
            if not self._open:
                await self._history.open()
                self._open = True

    async def _tail(self, length: int) -> int:
        """Where to begin to read so that one read reaches the end."""
        history = self._history
        if self._blocks.end or not history.size:
            return max(history.size, self.size - length)
        part = await history.slice_at(history.size - 1)
        return max(part.starts[0], history.size - length)

    async def _read_blocks(self, offset: int, length: int) -> bytes:
        """Bytes of blocks from `offset` on; as much as a few of them have."""
        blocks = self._blocks
        if offset >= blocks.end:
            return b""
        index = blocks.find(offset)
        if index < 0:
            raise EncampError(f"no lines this old of {self.label} are kept", "open it again to see them")
        pieces: list[bytes] = []
        missing = length
        for number in range(index, min(index + BLOCKS_PER_READ, len(blocks.starts))):
            real, own = blocks.reals[number], blocks.lengths[number]
            skip = offset - blocks.starts[number] if number == index else 0
            data = b""
            if skip < own:
                data = await self._streams[blocks.streams[number]].read(real + skip, real + own)
            if len(data) == max(0, own - skip):
                data += b"\n" * (blocks.stop(number) - blocks.starts[number] - max(own, skip))
                missing -= len(data)
            else:
                missing = 0
            pieces.append(data)
            if missing <= 0:
                break
        return b"".join(pieces)[:length]

    async def _reals_at(self, offset: int) -> list[int]:
        """For each stream, where in it the first byte is that stands at or after `offset` here."""
        if offset < self._history.size:
            return await self._history.reals_at(offset)
        reals = [stream.end for stream in self._streams]
        for index, inlet in self._inlets.items():
            reals[index] = inlet.start
        blocks = self._blocks
        offset -= self._history.size
        for number in range(len(blocks.starts) - 1, max(0, blocks.find(offset)) - 1, -1):
            skip = max(0, offset - blocks.starts[number])
            reals[blocks.streams[number]] = blocks.reals[number] + min(skip, blocks.lengths[number])
        return reals

    def _own_newlines(self, offset: int, *, backward: bool) -> list[int]:
        """The nearest newline that no stream has, because a line was shown before its end; at most one."""
        blocks, base = self._blocks, self._history.size
        numbers = range(len(blocks.starts) - 1, -1, -1) if backward else range(len(blocks.starts))
        for number in numbers:
            end = base + blocks.stop(number) - 1
            own = blocks.starts[number] + blocks.lengths[number] < blocks.stop(number)
            if own and (end < offset if backward else end >= offset):
                return [end]
        return []

    async def _place_of(self, index: int, real: int) -> int | None:
        """Our offset of a stream's byte; None while its line has not come to an end."""
        if real < self._streams[index].end:
            return await self._history.place_of(index, real)
        blocks = self._blocks
        for number in range(len(blocks.starts) - 1, -1, -1):
            start = blocks.reals[number]
            if blocks.streams[number] == index and start <= real < start + blocks.lengths[number]:
                return self._history.size + blocks.starts[number] + real - start
        return None
