"""Log files by byte offset: ranges, followers and search.

A stream's file is only ever appended to, so an offset names the same bytes for ever, and the file itself is
the queue of every follower: however slow a viewer is, nothing is buffered for it here.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Optional

from . import wire

SKIP_BYTES = 16 * 1024 * 1024
"""A follower that falls behind by this much more than it ever caught up to skips ahead and says so."""

KEEP_BYTES = 512 * 1024
"""How much of the newest output such a follower still gets."""

SEARCH_BYTES = 64 * 1024 * 1024
"""Bytes that one search request looks at before it answers that there is more."""

SLICE_BYTES = 1024 * 1024
"""Bytes searched at a time: `bytes.find` keeps other threads waiting for a fraction of a millisecond."""

LINE_BYTES = 16 * 1024 * 1024
"""How far back the start of a hit's line is looked for."""


class Range(NamedTuple):
    """`data` is at `offset`; `size` is the file's size at the time of reading."""

    offset: int
    data: bytes
    size: int


def read_range(path: str, offset: int, length: int) -> Range:
    """Up to `length` bytes from `offset`; a negative offset counts from the end. A missing file is empty.

    Raises OSError.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Range(max(0, offset), b"", 0)
    try:
        size = os.fstat(fd).st_size
        start = max(0, size + offset) if offset < 0 else offset
        return Range(start, os.pread(fd, min(length, wire.MAX_CHUNK), start), size)
    finally:
        os.close(fd)


def size_of(path: str) -> int:
    """Size of the file, 0 while there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


class Follower:
    """One viewer's place in one stream. `take` returns what comes next; it never waits."""

    def __init__(self, path: str, run: str, attempt: int, stream: str, offset: int) -> None:
        self.key = (run, attempt, stream)
        self.offset = offset
        self._path = path
        self._fd = -1
        self._least_behind: Optional[int] = None

    def take(self) -> Optional[bytes]:
        """The next `Log` or `Gap` as a line, or None when there is nothing new (yet). Raises OSError.

        A viewer that starts far behind reads all of it, as long as it gains on the writer. One that
        loses ground is brought back to the present: it can fetch what it missed when somebody looks.
        """
        if self._fd < 0 and not self._open():
            return None
        run, attempt, stream = self.key
        data = os.pread(self._fd, wire.MAX_CHUNK, self.offset)
        if len(data) == wire.MAX_CHUNK:
            behind = os.fstat(self._fd).st_size - self.offset
            if self._least_behind is None or behind < self._least_behind:
                self._least_behind = behind
            elif behind > self._least_behind + SKIP_BYTES:
                start, self.offset = self.offset, self.offset + behind - KEEP_BYTES
                self._least_behind = KEEP_BYTES
                return wire.encode(wire.Gap(run, attempt, stream, start, self.offset))
        else:
            self._least_behind = 0
            if not data:
                return None
        start, self.offset = self.offset, self.offset + len(data)
        return wire.encode_log(run, attempt, stream, start, data)

    def close(self) -> None:
        """Give the descriptor back. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> bool:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        return True


class Found(NamedTuple):
    """Where the hit is. Without one, all up to `scanned_to` was looked at; `more` says to go on there."""

    offset: Optional[int]
    line_offset: Optional[int]
    scanned_to: int
    more: bool


def search(path: str, needle: bytes, offset: int, backward: bool = False, ignore_case: bool = False) -> Found:
    """Look for `needle` literally: forward for a hit at or after `offset`, backward for one before it.

    `ignore_case` holds for ASCII letters. At most SEARCH_BYTES are read; going on from `scanned_to` misses
    nothing. A negative offset counts from the end of the file. Raises OSError.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Found(None, None, max(0, offset), False)
    try:
        size = os.fstat(fd).st_size
        start = max(0, size + offset) if offset < 0 else min(offset, size)
        if ignore_case:
            needle = needle.lower()
        find = _backward if backward else _forward
        found = find(fd, needle, start, ignore_case)
        if found.offset is None:
            return found
        return found._replace(line_offset=_line_start(fd, found.offset))
    finally:
        os.close(fd)


def _forward(fd: int, needle: bytes, start: int, fold: bool) -> Found:
    size = os.fstat(fd).st_size
    stop = min(size, start + SEARCH_BYTES)
    position = start
    while position < stop:
        data = os.pread(fd, SLICE_BYTES + len(needle) - 1, position)
        hit = (data.lower() if fold else data).find(needle)
        if hit >= 0:
            return Found(position + hit, None, position + hit, False)
        if len(data) < len(needle):
            break
        position += len(data) - len(needle) + 1
    return Found(None, None, min(position, size), size - position >= len(needle))


def _backward(fd: int, needle: bytes, start: int, fold: bool) -> Found:
    stop = max(0, start - SEARCH_BYTES)
    position = start
    while position > stop:
        low = max(stop, position - SLICE_BYTES)
        data = os.pread(fd, position - low + len(needle) - 1, low)
        hit = (data.lower() if fold else data).rfind(needle)
        if hit >= 0:
            return Found(low + hit, None, low + hit, False)
        position = low
    return Found(None, None, position, position > 0)


def _line_start(fd: int, offset: int) -> Optional[int]:
    """Offset of the first byte of the line around `offset`, None when it is more than LINE_BYTES away."""
    position = offset
    while position > 0 and offset - position < LINE_BYTES:
        low = max(0, position - 64 * 1024)
        newline = os.pread(fd, position - low, low).rfind(b"\n")
        if newline >= 0:
            return low + newline + 1
        position = low
    return 0 if position == 0 else None
