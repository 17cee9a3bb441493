"""The bytes of a growing file that are known here: a bounded set of pieces at offsets, with holes between.

What is stored never changes (a log is only appended to), so overlapping data is taken once and the order of
arrival does not matter. Newlines are counted as pieces come in and searched for only where somebody looks.

The middle of a very long line is *elided*: it is known that it holds no newline, and its bytes are dropped,
so that a line of any length costs the same memory.
"""

from __future__ import annotations

from bisect import bisect_right

MAX_BYTES = 8 * 1024 * 1024
"""Bytes kept in memory for one log."""

MAX_PIECES = 4096

TAIL_BYTES = 1024 * 1024
"""The file's end stays in memory while the reader is elsewhere: going back to it is instant."""

LONG_LINE = 64 * 1024
"""A stretch without a newline longer than this loses its middle."""

KEPT_EDGE = 8 * 1024
"""Bytes kept at either end of such a stretch."""

PIECE_BYTES = 64 * 1024
"""Small additions are joined up to about this size."""


class Piece:
    """Bytes [start, end) of the file; `data` is None where they are elided."""

    __slots__ = ("data", "end", "newlines", "start")

    def __init__(self, start: int, end: int, data: bytearray | None) -> None:
        self.start = start
        self.end = end
        self.data = data
        self.newlines = data.count(b"\n") if data is not None else 0


class LogBytes:
    """Pieces of one file, sorted, never overlapping, holding at most `max_bytes` (elided ones hold none)."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        """Bytes that the file is known to have, whether or not they are here."""
        self.held = 0
        """Bytes in memory."""
        self.focus = (0, 0)
        """The range that is being looked at: it and the file's end are dropped last. Empty: only the end."""
        self._pieces: list[Piece] = []
        self._starts: list[int] = []

    # --- taking in ------------------------------------------------------------------------------------

    def add(self, offset: int, data: bytes) -> None:
        """Take in `data`, found at `offset`; what is known already is skipped."""
        end = offset + len(data)
        self.size = max(self.size, end)
        for start, stop in self.missing(offset, end):
            self._insert(start, memoryview(data)[start - offset : stop - offset])
        self._evict()

    def grow(self, size: int) -> None:
        """The file is known to have at least `size` bytes."""
        self.size = max(self.size, size)

    def elide(self, start: int, end: int) -> None:
        """Note that [start, end) holds no newline and need not be shown; its bytes are dropped."""
        if start >= end:
            return
        first = bisect_right(self._starts, start) - 1
        if first >= 0 and self._pieces[first].end < start:
            first += 1
        first = max(first, 0)
        last = first
        replacement: list[Piece] = []
        middle = Piece(start, end, None)
        after: Piece | None = None
        while last < len(self._pieces) and self._pieces[last].start <= end:
            piece = self._pieces[last]
            if piece.data is None:
                middle.start, middle.end = min(middle.start, piece.start), max(middle.end, piece.end)
            else:
                self.held -= len(piece.data)
                if piece.start < start:
                    replacement.append(self._part(piece, piece.start, start))
                if piece.end > end:
                    after = self._part(piece, end, piece.end)
            last += 1
        replacement.append(middle)
        if after is not None:
            replacement.append(after)
        self._pieces[first:last] = replacement
        self._starts[first:last] = [piece.start for piece in replacement]
        self.size = max(self.size, end)

    def _part(self, piece: Piece, start: int, end: int) -> Piece:
        """A new piece with the bytes [start, end) of `piece`, which holds data."""
        assert piece.data is not None
        part = Piece(start, end, piece.data[start - piece.start : end - piece.start])
        self.held += end - start
        return part

    def _insert(self, start: int, data: memoryview) -> None:
        """Put in bytes of which none is known yet."""
        index = bisect_right(self._starts, start)
        before = self._pieces[index - 1] if index else None
        if (
            before is not None
            and before.end == start
            and before.data is not None
            and len(before.data) + len(data) <= PIECE_BYTES
        ):
            before.data += data
            before.newlines += before.data.count(b"\n", start - before.start)
            before.end += len(data)
        else:
            piece = Piece(start, start + len(data), bytearray(data))
            self._pieces.insert(index, piece)
            self._starts.insert(index, start)
        self.held += len(data)
        self._shorten(start, start + len(data))

    def _shorten(self, start: int, end: int) -> None:
        """Elide the middle of long stretches without a newline that reach into the new bytes [start, end)."""
        left, _ = self.line_start(start)
        right, ended = self.line_end(start)
        self._shorten_stretch(left, right)
        if ended and right < end:
            left, _ = self.line_start(end)
            right, _ = self.line_end(end)
            self._shorten_stretch(left, right)

    def _shorten_stretch(self, start: int, end: int) -> None:
        if end - start > LONG_LINE:
            self.elide(start + KEPT_EDGE, end - KEPT_EDGE)

    def _evict(self) -> None:
        """Drop whole pieces until the limits hold, those farthest from the focus first."""
        while self._pieces and (self.held > self.max_bytes or len(self._pieces) > MAX_PIECES):
            index = self._least_wanted()
            piece = self._pieces.pop(index)
            del self._starts[index]
            self.held -= len(piece.data) if piece.data is not None else 0

    def _least_wanted(self) -> int:
        """Index of the piece to drop: at either end of what is known, else between the focus and the tail."""
        start, end = self.focus if self.focus[0] < self.focus[1] else (self.size, self.size)
        tail = self.size - min(TAIL_BYTES, self.max_bytes // 4)
        high = bisect_right(self._starts, tail) - 1
        below = start - self._pieces[0].end
        above = self._pieces[high].start - end if high >= 0 else 0
        if max(below, above) < 0:
            beyond = bisect_right(self._starts, end)
            return beyond if beyond < len(self._pieces) else 0
        return high if above > below else 0

    # --- looking up -----------------------------------------------------------------------------------

    def _index(self, offset: int) -> int | None:
        """Index of the piece that holds the byte at `offset`."""
        index = bisect_right(self._starts, offset) - 1
        if index >= 0 and self._pieces[index].end > offset:
            return index
        return None

    def has(self, offset: int) -> bool:
        """Whether the byte at `offset` is here, or elided."""
        return self._index(offset) is not None

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that are not known, in order."""
        holes: list[tuple[int, int]] = []
        index = max(bisect_right(self._starts, start) - 1, 0)
        position = start
        while position < end and index < len(self._pieces):
            piece = self._pieces[index]
            if piece.start >= end:
                break
            if piece.start > position:
                holes.append((position, piece.start))
            position = max(position, piece.end)
            index += 1
        if position < end:
            holes.append((position, end))
        return holes

    def line_start(self, offset: int) -> tuple[int, bool]:
        """Where the line that goes on at `offset` begins, True; or where the known bytes begin, False.

        Both are `offset` itself when the byte before it ends a line, or is not known.
        """
        found = self._index(offset - 1)
        if found is None:
            return offset, offset == 0
        index = found
        while True:
            piece = self._pieces[index]
            if piece.newlines and piece.data is not None:
                at = piece.data.rfind(b"\n", 0, max(offset - piece.start, 0))
                if at >= 0:
                    return piece.start + at + 1, True
            if index == 0 or self._pieces[index - 1].end != piece.start:
                return piece.start, piece.start == 0
            index -= 1

    def line_end(self, offset: int) -> tuple[int, bool]:
        """The end of the line that goes on at `offset`, and True; or the end of what is known, and False.

        The newline is part of the line.
        """
        found = self._index(offset)
        if found is None:
            return offset, False
        index = found
        while True:
            piece = self._pieces[index]
            if piece.newlines and piece.data is not None:
                at = piece.data.find(b"\n", max(offset - piece.start, 0))
                if at >= 0:
                    return piece.start + at + 1, True
            if index + 1 == len(self._pieces) or self._pieces[index + 1].start != piece.end:
                return piece.end, False
            index += 1

    def known_end_before(self, offset: int) -> int:
        """The end of the last known bytes before the unknown byte `offset - 1`; 0 when there are none."""
        index = bisect_right(self._starts, offset - 1) - 1
        return self._pieces[index].end if index >= 0 else 0

    def known_start_after(self, offset: int) -> int:
        """The start of the first known bytes after the unknown byte at `offset`, or the size."""
        index = bisect_right(self._starts, offset)
        return self._starts[index] if index < len(self._starts) else self.size

    def known_around(self, offset: int) -> tuple[int, int]:
        """The range without holes that holds `offset`; empty at `offset` when that byte is not known."""
        found = self._index(offset)
        if found is None:
            return offset, offset
        low = high = found
        while low > 0 and self._pieces[low - 1].end == self._pieces[low].start:
            low -= 1
        while high + 1 < len(self._pieces) and self._pieces[high + 1].start == self._pieces[high].end:
            high += 1
        return self._pieces[low].start, self._pieces[high].end

    def newlines(self, start: int, end: int) -> int | None:
        """How many newlines [start, end) has, or None where some of it is not known."""
        total = 0
        position = start
        index = self._index(start) if start < end else None
        while position < end:
            if index is None or index == len(self._pieces) or self._pieces[index].start > position:
                return None
            piece = self._pieces[index]
            if piece.data is not None:
                if position == piece.start and piece.end <= end:
                    total += piece.newlines
                else:
                    total += piece.data.count(b"\n", position - piece.start, end - piece.start)
            position = piece.end
            index += 1
        return total

    def find(
        self, needle: bytes, offset: int, *, backward: bool, ignore_case: bool
    ) -> tuple[int | None, int]:
        """Search what is in memory for the first match from `offset` on, or the last that begins before it.

        Returns the match's offset, or None and where the search has to go on: at the first byte that is not
        in memory, or at the end of the file. `ignore_case` holds for ASCII letters.
        """
        reach = len(needle) - 1
        position = offset
        while True:
            index = self._index(position - 1 if backward else position)
            piece = self._pieces[index] if index is not None else None
            if piece is None or piece.data is None:
                return None, position if backward else max(offset, position - reach)
            # A match may begin in one piece and end in the next.
            low, high = (piece.start, position + reach) if backward else (position, piece.end + reach)
            block = self._contiguous(low, high)
            if backward and position == offset and low + len(block) < min(high, self.size):
                return None, offset
            if ignore_case:
                block, needle = block.lower(), needle.lower()
            at = block.rfind(needle) if backward else block.find(needle)
            if at >= 0:
                return low + at, low + at
            position = piece.start if backward else piece.end

    def _contiguous(self, start: int, end: int) -> bytes:
        """The bytes from `start` on, up to `end` or to the first one that is not in memory."""
        parts: list[bytearray] = []
        index = bisect_right(self._starts, start) - 1
        position = start
        while position < end and 0 <= index < len(self._pieces):
            piece = self._pieces[index]
            if piece.data is None or not piece.start <= position < piece.end:
                break
            parts.append(piece.data[position - piece.start : end - piece.start])
            position = piece.end
            index += 1
        return b"".join(parts)

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end). Raises LookupError where some of them are not in memory."""
        data = self._contiguous(start, end)
        if len(data) < end - start:
            raise LookupError(f"byte {start + len(data)} is not in memory")
        return data
