"""A log as lines: which bytes make a line, which lines are not known yet, and what a line looks like.

Lines have no numbers: a line is known by the offset of its first byte, so a log of any size can be entered
anywhere, and nothing on the screen moves when bytes are dropped, fetched or appended elsewhere. A stretch
whose lines cannot be told, because some of its bytes were not sent or were dropped, is a `Hole`; filling it
in any order gives the same lines.

What is shown of a line: a progress bar's last state (what follows the last carriage return), at most
`SHOWN_BYTES` of a line over `WHOLE_BYTES`, and only what `sanitize` lets through. The file stays as it is.
"""

from __future__ import annotations

import codecs
from array import array
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass

from .log_bytes import KEPT_EDGE, MAX_BYTES, LogBytes
from .sanitize import Sgr, styled

WHOLE_BYTES = KEPT_EDGE * 2
"""Lines up to this long are shown in full."""

SHOWN_BYTES = 4 * 1024
"""How much is shown of a longer one."""

CACHED_LINES = 1024

MARKS = 65536
"""How many arrival times are remembered."""

MARK_SECONDS = 0.05
"""Chunks that come closer together than this share one arrival time."""


@dataclass(frozen=True, slots=True)
class Line:
    """The bytes [start, end) of the file, the newline included; `open` when it has not been ended yet."""

    start: int
    end: int
    open: bool = False


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes [start, end) whose lines are not known. `missing` are its first and last unknown ranges."""

    start: int
    end: int
    missing: tuple[tuple[int, int], tuple[int, int]]

    @property
    def unknown_bytes(self) -> int:
        """How many bytes there are from the first unknown one to the last."""
        return self.missing[1][1] - self.missing[0][0]


Item = Line | Hole


@dataclass(frozen=True, slots=True)
class Shown:
    """A line as it is drawn: printable pieces with their styles, and a note where it was cut."""

    pieces: tuple[tuple[str, Sgr], ...]
    note: str = ""

    @property
    def text(self) -> str:
        """The line's text without styles and note."""
        return "".join(text for text, _ in self.pieces)


class LogWindow:
    """The lines of one log, as far as they are known. `revision` grows with everything that comes in."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.known = LogBytes(max_bytes)
        self.revision = 0
        self._shown: OrderedDict[Line, Shown] = OrderedDict()
        self._mark_offsets = array("q")
        self._mark_times = array("d")

    # --- taking in ------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes that the log is known to have."""
        return self.known.size

    def add(self, offset: int, data: bytes, arrived: float | None = None) -> None:
        """Take in bytes at an offset. `arrived` is the wall clock for output that has just been written."""
        if not data:
            return
        if arrived is not None:
            self._mark(offset, arrived)
        self.known.add(offset, data)
        self.revision += 1

    def gap(self, start: int, end: int) -> None:
        """Bytes [start, end) exist but were not sent."""
        self.unwatched(start)
        self.grow(end)

    def unwatched(self, offset: int) -> None:
        """What was written from `offset` on came while nobody could see when."""
        self._mark(offset, -1.0)

    def grow(self, size: int) -> None:
        """The log is known to have at least `size` bytes."""
        if size > self.size:
            self.known.grow(size)
            self.revision += 1

    def no_newline(self, start: int, end: int) -> None:
        """It was found out that [start, end) holds no newline: all but its edges need not be fetched."""
        self.known.elide(start + KEPT_EDGE, end - KEPT_EDGE)
        self.revision += 1

    def _mark(self, offset: int, arrived: float) -> None:
        """Remember when what follows `offset` came; a negative time says that nobody saw it come."""
        times = self._mark_times
        if times and (0 <= arrived - times[-1] < MARK_SECONDS or offset <= self._mark_offsets[-1]):
            return
        if len(times) >= MARKS:
            del self._mark_offsets[: MARKS // 4]
            del times[: MARKS // 4]
        self._mark_offsets.append(offset)
        times.append(arrived)

    # --- lines ----------------------------------------------------------------------------------------

    def item_at(self, offset: int) -> Item:
        """The line or hole that holds the byte at `offset`, which must be below `size`."""
        if self.known.has(offset):
            start, begun = self.known.line_start(offset)
            end, ended = self.known.line_end(offset)
            if begun and (ended or end >= self.size):
                return Line(start, end, not ended)
        return self._hole_at(offset)

    def _hole_at(self, offset: int) -> Hole:
        """The hole around `offset`: on either side it ends where lines can be told again."""
        start, sure = self.known.line_start(offset)
        while not sure:
            start, sure = self.known.line_start(self.known.known_end_before(start))
        end, sure = self.known.line_end(offset)
        while not sure and end < self.size:
            end = self.known.known_start_after(end)
            if end < self.size:
                end, sure = self.known.line_end(end)
        missing = self.known.missing(start, end)
        return Hole(start, end, (missing[0], missing[-1]))

    def newlines(self, start: int, end: int) -> int | None:
        """How many line ends [start, end) has, or None where some of it is not known."""
        return self.known.newlines(start, end)

    def arrived(self, offset: int) -> float | None:
        """Wall clock when the byte at `offset` came in as new output; None when nobody saw it come."""
        index = bisect_right(self._mark_offsets, offset) - 1
        if index < 0 or self._mark_times[index] < 0:
            return None
        return self._mark_times[index]

    # --- what a line looks like -----------------------------------------------------------------------

    def shown(self, line: Line) -> Shown:
        """The line as it is drawn. A line whose bytes were dropped meanwhile is empty with a note."""
        shown = self._shown.get(line)
        if shown is not None:
            self._shown.move_to_end(line)
            return shown
        try:
            shown = self._show(line)
        except LookupError:
            return Shown((), "…")
        self._shown[line] = shown
        if len(self._shown) > CACHED_LINES:
            self._shown.popitem(last=False)
        return shown

    def _show(self, line: Line) -> Shown:
        start, end = line.start, line.end if line.open else line.end - 1
        if end - start <= WHOLE_BYTES:
            state = _last_state(self.known.read(start, end))
            return Shown(_decoded(state, line.open))
        tail = self.known.read(line.end - KEPT_EDGE, end)
        if b"\r" in tail.rstrip(b"\r"):
            state = _last_state(tail)
            note = f"… {_short_size(len(state))} line" if len(state) > SHOWN_BYTES else ""
            return Shown(_decoded(state[:SHOWN_BYTES], line.open or bool(note)), note)
        head = self.known.read(start, start + SHOWN_BYTES)
        return Shown(
            _decoded(head, True), f"… {_short_size(end - start)} line, showing {SHOWN_BYTES // 1024} KiB"
        )


def _last_state(data: bytes) -> bytes:
    """What a terminal would still show of a line that was written over: the part after the last return."""
    data = data.rstrip(b"\r")
    return data[data.rfind(b"\r") + 1 :]


def _decoded(data: bytes, cut: bool) -> tuple[tuple[str, Sgr], ...]:
    """Printable pieces of UTF-8; where it was `cut`, a half character at the end is left out."""
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(data, final=not cut)
    return tuple(styled(text))


def _short_size(count: int) -> str:
    """Bytes in decimal units with one decimal: `10.0 MB`."""
    for unit, divisor in (("GB", 1e9), ("MB", 1e6)):
        if count >= divisor:
            return f"{count / divisor:.1f} {unit}"
    return f"{count / 1e3:.1f} kB"
