"""What comes in while several logs are followed as one: whole lines, in the order in which they arrive."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from typing import Protocol

PARTIAL_SECONDS = 2.0
"""A line that does not end for so long is shown as it is; what follows becomes a line of its own."""

PARTIAL_BYTES = 256 * 1024
"""A line that has this much and no end is shown as it is."""

MAX_BLOCKS = 400_000
"""How many blocks are remembered; older ones can be seen in their own streams only."""


class Taker(Protocol):
    """Takes what the inlets pass on."""

    def arrived(self, index: int, real: int, data: bytes, extra: bytes) -> None:
        """Lines of stream `index` that begin at `real` in it, and a newline that is not in it."""

    def skipped(self, index: int, start: int, end: int) -> None:
        """A range of stream `index` was not sent."""


class Inlet:
    """Takes in one stream and passes on whole lines."""

    def __init__(self, taker: Taker, index: int, start: int) -> None:
        self._taker = taker
        self._index = index
        self.start = start
        """Where the line that has not ended yet begins."""
        self._pending = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def data(self, offset: int, data: bytes) -> None:
        """Pass on what ends in a newline, keep the rest for a moment."""
        if not self._pending:
            self.start = offset
        self._pending += data
        whole = self._pending.rfind(b"\n") + 1
        if whole:
            self._pass(whole, b"")
        if len(self._pending) > PARTIAL_BYTES:
            self.flush()
        elif self._pending and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PARTIAL_SECONDS, self._overdue)

    def gap(self, start: int, end: int) -> None:
        """Pass on that something was not sent; it is on lines of its own."""
        self.flush()
        self._taker.skipped(self._index, start, end)
        self.start = end

    def flush(self) -> None:
        """Pass on what there is of a line."""
        if self._pending:
            self._pass(len(self._pending), b"\n")

    def close(self) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _overdue(self) -> None:
        self._timer = None
        if b"\r" not in self._pending:  # a progress bar is shown when it is done
            self.flush()

    def _pass(self, length: int, extra: bytes) -> None:
        self.close()
        data = bytes(self._pending[:length])
        del self._pending[:length]
        start, self.start = self.start, self.start + length
        self._taker.arrived(self._index, start, data, extra)


class Blocks:
    """Runs of whole lines of one stream, as they came; some end in a newline that only we have."""

    def __init__(self) -> None:
        self.starts = array("q")
        self.streams = array("l")
        self.reals = array("q")
        self.lengths = array("q")
        self.end = 0
        self._closed = True

    def add(self, stream: int, real: int, length: int, extra: int) -> int:
        """Append a block with `extra` bytes more than the stream has; return where it begins."""
        start = self.end
        self.end += length + extra
        if not self._closed and self.streams[-1] == stream and self.reals[-1] + self.lengths[-1] == real:
            self.lengths[-1] += length
        else:
            if len(self.starts) >= MAX_BLOCKS:
                for column in (self.starts, self.streams, self.reals, self.lengths):
                    del column[: MAX_BLOCKS // 4]
            self.starts.append(start)
            self.streams.append(stream)
            self.reals.append(real)
            self.lengths.append(length)
        self._closed = extra > 0
        return start

    def find(self, offset: int) -> int:
        """Index of the block that holds `offset`; -1 when it is one of those that were let go."""
        return bisect_right(self.starts, offset) - 1

    def stop(self, number: int) -> int:
        """Where a block ends."""
        return self.starts[number + 1] if number + 1 < len(self.starts) else self.end
