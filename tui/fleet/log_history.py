"""The order of lines in several logs that were written before anybody watched.

They have no common clock, so a line stands where it stands in its own stream: lines are ordered by how far
down they begin, from 0 to 1. Ranks that do the same work line up. The order is cut into n slices of about
`SLICE_BYTES`, each of which can be put together by itself: in a stream, slice k begins with the first line at
or after k/n of its bytes. So every line is reached without reading the streams through.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .errors import RequestRefused
from .log_source import CHUNK_BYTES, LogSlice, LogSource

SLICE_BYTES = 64 * 1024
"""How much is put in order at a time."""

KEPT_SLICES = 256


@dataclass(slots=True)
class Stream:
    """One of the logs: its history is [0, end)."""

    source: LogSource
    end: int = 0
    follow_from: int = 0
    """Later than `end` when the last line has no end yet and is long."""
    whole: bytes | None = None
    """All of the history, when it is short."""
    snaps: dict[int, int] = field(default_factory=dict)

    async def open(self) -> None:
        """See where the last whole line ends. A stream that does not exist yet is empty."""
        try:
            tail = await self.source.read(-CHUNK_BYTES, CHUNK_BYTES)
        except RequestRefused as error:
            if error.code != "no-stream":
                raise
            tail = LogSlice(0, b"", 0, False)
        newline = tail.data.rfind(b"\n")
        if newline >= 0 or tail.offset == 0:
            self.end = self.follow_from = tail.offset + newline + 1
        else:
            before = await find(self.source, "\n", tail.offset, backward=True)
            self.end = before + 1 if before is not None else 0
            self.follow_from = tail.offset + len(tail.data)
        self.whole = tail.data[: self.end] if tail.offset == 0 else None

    async def read(self, start: int, end: int) -> bytes:
        """Bytes [start, end), at most `CHUNK_BYTES` of them."""
        if self.whole is not None and end <= self.end:
            return self.whole[start : min(end, start + CHUNK_BYTES)]
        return (await self.source.read(start, min(CHUNK_BYTES, end - start))).data[: end - start]


@dataclass(frozen=True, slots=True)
class Slice:
    """Lines in their order: where each begins in the merged log, in which stream, and where there."""

    number: int
    end: int
    starts: array[int]
    streams: array[int]
    reals: array[int]

    def entry(self, offset: int) -> int:
        """Index of the line that holds `offset`."""
        return bisect_right(self.starts, offset) - 1

    def stop(self, index: int) -> int:
        """Where the line of that index ends here."""
        return self.starts[index + 1] if index + 1 < len(self.starts) else self.end


class History:
    """All lines of several streams, as one log of `size` bytes. Methods raise EncampError."""

    def __init__(self, sources: Sequence[LogSource]) -> None:
        self.streams = [Stream(source) for source in sources]
        self.size = 0
        self._count = 1
        self._slices: OrderedDict[int, Slice] = OrderedDict()

    async def open(self) -> None:
        """See how long the streams are."""
        await asyncio.gather(*(stream.open() for stream in self.streams))
        self.size = sum(stream.end for stream in self.streams)
        self._count = max(1, -(-self.size // SLICE_BYTES))

    def origin(self, offset: int) -> int | None:
        """Which stream the line at `offset` is from; None when that part has not been read lately."""
        for part in reversed(self._slices.values()):
            if part.starts and part.starts[0] <= offset < part.end:
                return part.streams[part.entry(offset)]
        return None

    async def _snap(self, index: int, cut: int) -> int:
        """Where the first line of a stream begins that belongs to slice `cut` or a later one."""
        stream = self.streams[index]
        place = stream.end * cut // self._count
        if place == 0 or cut == self._count:
            return place
        if stream.whole is not None:
            return stream.whole.find(b"\n", place - 1) + 1
        if cut not in stream.snaps:
            newline = await find(stream.source, "\n", place - 1)
            stream.snaps[cut] = min(newline + 1, stream.end) if newline is not None else stream.end
        return stream.snaps[cut]

    async def _snaps(self, cut: int) -> list[int]:
        return await asyncio.gather(*(self._snap(index, cut) for index in range(len(self.streams))))

    async def slice_at(self, offset: int) -> Slice:
        """The slice of the history that holds `offset`."""

        async def begins(number: int) -> bool:
            return sum(await self._snaps(number)) <= offset

        guess = offset * self._count // max(1, self.size)
        return await self._slice(await _last(begins, self._count, guess))

    async def _slice(self, number: int) -> Slice:
        known = self._slices.get(number)
        if known is not None:
            self._slices.move_to_end(number)
            return known
        lows, highs = await asyncio.gather(self._snaps(number), self._snaps(number + 1))
        begins = await asyncio.gather(
            *(self._line_starts(index, number, lows[index], highs[index]) for index in range(len(lows)))
        )
        lines: list[tuple[float, int, int, int]] = []
        for index, starts in enumerate(begins):
            size = self.streams[index].end
            lines += [(start / size, index, start, end) for start, end in pairwise([*starts, highs[index]])]
        lines.sort()
        position = sum(lows)
        result = Slice(number, sum(highs), array("q"), array("l"), array("q"))
        for _, index, start, end in lines:
            result.starts.append(position)
            result.streams.append(index)
            result.reals.append(start)
            position += end - start
        self._slices[number] = result
        if len(self._slices) > KEPT_SLICES:
            self._slices.popitem(last=False)
        return result

    async def _line_starts(self, index: int, number: int, low: int, high: int) -> list[int]:
        """Where the lines of a stream begin that belong to a slice. The last one may be of any length."""
        if low >= high:
            return []
        stream = self.streams[index]
        limit = min(high, max(low + 1, stream.end * (number + 1) // self._count))
        data = await stream.read(low, limit)
        starts = [low]
        at = data.find(b"\n")
        while 0 <= at < len(data) - 1:
            starts.append(low + at + 1)
            at = data.find(b"\n", at + 1)
        return starts

    async def read(self, offset: int, length: int) -> bytes:
        """Bytes from `offset` on: at most `length`, and at most to the end of a slice."""
        part = await self.slice_at(offset)
        first = part.entry(offset)
        last = part.entry(min(offset + length, part.end) - 1)
        ranges: dict[int, tuple[int, int]] = {}
        for entry in range(first, last + 1):
            real = part.reals[entry]
            begin, end = real, real + part.stop(entry) - part.starts[entry]
            if entry == first:
                begin += offset - part.starts[first]
            low, high = ranges.get(part.streams[entry], (begin, end))
            ranges[part.streams[entry]] = (min(low, begin), max(high, end))
        parts = await asyncio.gather(*(self.streams[index].read(*span) for index, span in ranges.items()))
        content = dict(zip(ranges, parts, strict=True))
        pieces: list[bytes] = []
        for entry in range(first, last + 1):
            index, real = part.streams[entry], part.reals[entry]
            skip = offset - part.starts[first] if entry == first else 0
            wanted = part.stop(entry) - part.starts[entry] - skip
            at = real + skip - ranges[index][0]
            piece = content[index][at : at + wanted]
            pieces.append(piece)
            if len(piece) < wanted:
                break
        return b"".join(pieces)[:length]

    async def reals_at(self, offset: int) -> list[int]:
        """For each stream, where in it the first byte is that stands at or after `offset` here."""
        part = await self.slice_at(offset)
        reals = await self._snaps(part.number + 1)
        for entry in range(len(part.starts) - 1, part.entry(offset) - 1, -1):
            reals[part.streams[entry]] = part.reals[entry] + max(0, offset - part.starts[entry])
        return reals

    async def place_of(self, index: int, real: int) -> int:
        """Our offset of a byte of a stream's history."""
        stream = self.streams[index]

        async def begins(number: int) -> bool:
            return await self._snap(index, number) <= real

        part = await self._slice(await _last(begins, self._count, real * self._count // stream.end))
        entry = max(n for n in range(len(part.starts)) if part.streams[n] == index and part.reals[n] <= real)
        return part.starts[entry] + real - part.reals[entry]


async def find(
    source: LogSource, text: str, offset: int, *, backward: bool = False, ignore_case: bool = False
) -> int | None:
    """The first match from `offset` on, or the last one that begins before it, however long that takes."""
    while True:
        step = await source.search(text, offset, backward=backward, ignore_case=ignore_case)
        if step.offset is not None or not step.more:
            return step.offset
        offset = step.scanned_to


async def _last(holds: Callable[[int], Awaitable[bool]], count: int, guess: int) -> int:
    """The last of `count` numbers up to which `holds` is true. Quick when it is near `guess`."""
    low, high = 0, count
    for probe in (guess, guess + 1, guess - 1):
        if low < probe < high:
            low, high = (probe, high) if await holds(probe) else (low, probe)
    while high - low > 1:
        probe = (low + high) // 2
        low, high = (probe, high) if await holds(probe) else (low, probe)
    return low
