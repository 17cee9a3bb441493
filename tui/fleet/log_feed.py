"""Keeps a log's window filled: follows what is written, fetches what somebody looks at, searches the rest.

A feed is one reader's work: it runs in one task, asks its source for one thing at a time, and survives a host
that cannot be asked by trying again. It knows nothing of the screen; whoever draws looks at `window`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import Enum

from .errors import EncampError, RequestRefused
from .log_source import CHUNK_BYTES, Condition, LogSource
from .log_window import LogWindow
from .patience import within

FAR = 256 * 1024
"""A line longer than this is not read through for its end: the host is asked where its newline is."""

FIRST_RETRY, LAST_RETRY = 0.5, 8.0
"""Seconds until the source is asked again after a failure: the wait doubles up to the last."""


BACKLOG_SECONDS = 1.0
"""What comes this soon after an outage may have been written during it."""


class Toward(Enum):
    """Which side of a place is wanted first."""

    EARLIER = "earlier"
    LATER = "later"
    AROUND = "around"


class FeedState(Enum):
    """Where a feed stands."""

    OPENING = "opening"
    FOLLOWING = "following"
    CLOSED = "closed"


class LogFeed:
    """One log's window and the task that fills it. `on_fetched` is called when fetched bytes have come."""

    def __init__(
        self,
        source: LogSource,
        *,
        on_fetched: Callable[[], None] = lambda: None,
        max_bytes: int | None = None,
    ) -> None:
        self.source = source
        self.window = LogWindow() if max_bytes is None else LogWindow(max_bytes)
        self.state = FeedState.OPENING
        self.problem: EncampError | None = None
        """Why the last question was not answered; None when it was."""
        self.ended = False
        """The source said that the attempt is over."""
        self.absent = False
        """The source said that there is no such stream yet."""
        self._on_fetched = on_fetched
        self._wanted: tuple[int, Toward] | None = None
        self._wake = asyncio.Event()
        self._running = asyncio.Lock()
        """A run that was cancelled stops following before the next one starts to."""
        self._unwatched = False
        """What comes next was written while the host could not be asked."""
        self._troubled = False
        self._backlog_until = 0.0

    # --- the sink of the followed stream ------------------------------------------------------------

    def data(self, offset: int, data: bytes) -> None:
        """Take in bytes that were just written."""
        self.absent = False
        if not self._unwatched:
            self.window.add(offset, data, time.time())
            return
        # What was written during an outage comes at once when it is over; then the stream goes on as before.
        self.window.unwatched(offset)
        self.window.add(offset, data)
        now = time.monotonic()
        self._backlog_until = self._backlog_until or now + BACKLOG_SECONDS
        if now >= self._backlog_until and len(data) < CHUNK_BYTES // 2:
            self._unwatched, self._backlog_until = False, 0.0

    def gap(self, start: int, end: int) -> None:
        """Take note of bytes that were written but not sent."""
        self.window.gap(start, end)

    # --- the task -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Open the log and serve wishes until cancelled; then stop following. May be run again after that."""
        async with self._running:
            self.state = FeedState.OPENING
            try:
                await self._persist(self._open)
                self.state = FeedState.FOLLOWING
                while True:
                    if self._wanted is None:
                        await self._wake.wait()
                    self._wake.clear()
                    await self._persist(self._fetch)
            finally:
                self.state = FeedState.CLOSED
                try:
                    await self.source.unfollow(self)
                except EncampError:
                    pass  # the connection is gone, and with it the following

    def want(self, offset: int, toward: Toward) -> None:
        """Somebody looks at `offset`, whose line is not known: fetch what is there. The last wish counts."""
        if self._wanted != (offset, toward):
            self._wanted = (offset, toward)
            self._wake.set()

    def condition(self) -> Condition:
        """How the stream is doing; takes note of outages, so it is to be asked at least every second."""
        condition = self.source.condition()
        if condition.trouble:
            self._unwatched = self._troubled = True
            self._backlog_until = 0.0
        elif self._troubled:
            self._troubled = False
            self._wake.set()
        return condition

    async def find(
        self,
        text: str,
        offset: int,
        *,
        backward: bool,
        ignore_case: bool,
        on_progress: Callable[[int], None] | None = None,
    ) -> int | None:
        """Offset of the first match from `offset` on, or of the last that begins before it; None without one.

        Searches what is here, then asks the source for the rest, `on_progress` saying how far it is. Raises
        EncampError when the source cannot be asked.
        """
        found, position = self.window.known.find(
            text.encode(), offset, backward=backward, ignore_case=ignore_case
        )
        while found is None and (not backward or position > 0):
            if on_progress is not None:
                on_progress(position)
            step = await self.source.search(text, position, backward=backward, ignore_case=ignore_case)
            found, position = step.offset, step.scanned_to
            if not step.more:
                break
        return found

    async def _open(self) -> None:
        """Read the end of the log, and follow from there."""
        self.window.unwatched(self.window.size)
        try:
            tail = await self.source.read(-CHUNK_BYTES, CHUNK_BYTES)
        except RequestRefused as error:
            if error.code != "no-stream":
                raise
            self.absent = True
            await self.source.follow(0, self)
            return
        self.window.grow(tail.size)
        self.window.add(tail.offset, tail.data)
        self.ended = tail.ended
        end = tail.offset + len(tail.data)
        if not tail.ended or end < tail.size:
            await self.source.follow(end, self)

    async def _fetch(self) -> None:
        """Read one range of what is wanted."""
        wanted = self._wanted
        place = await self._place(*wanted) if wanted is not None else None
        if place is not None:
            start, end = place
            part = await self.source.read(start, end - start)
            if not part.data:
                raise EncampError(
                    "the log on the host is shorter than it was", "it was cut or replaced there"
                )
            self.window.grow(part.size)
            self.window.add(part.offset, part.data)
            self.ended = part.ended
        if self._wanted == wanted:
            self._wanted = None

    async def _place(self, offset: int, toward: Toward) -> tuple[int, int] | None:
        """The range to read next so that the line at `offset` becomes known; None when it is."""
        known = self.window.known
        if offset >= known.size:
            return None
        if not known.has(offset):
            low, high = known.known_end_before(offset + 1), known.known_start_after(offset)
            if toward is Toward.EARLIER:
                return max(low, offset + 1 - CHUNK_BYTES), offset + 1
            start = offset if toward is Toward.LATER else max(low, offset - CHUNK_BYTES // 2)
            return start, min(high, start + CHUNK_BYTES)
        start, begun = known.line_start(offset)
        end, ended = known.line_end(offset)
        if not begun and end - start > FAR:
            await self._skip_to_line_start(start, end)
            start, begun = known.line_start(offset)
        if not begun:
            return max(known.known_end_before(start), start - CHUNK_BYTES), start
        if not ended and end < known.size and end - start > FAR:
            await self._skip_to_line_end(start, end)
            end, ended = known.line_end(offset)
        if not ended and end < known.size:
            return end, min(known.known_start_after(end), end + CHUNK_BYTES)
        return None

    async def _skip_to_line_start(self, start: int, end: int) -> None:
        """[start, end) has no newline: find the one before it, so that what lies between is not fetched."""
        newline, _ = await self._newline(start, backward=True)
        self.window.no_newline(newline + 1 if newline is not None else 0, end)

    async def _skip_to_line_end(self, start: int, end: int) -> None:
        """[start, end) has no newline: find the one after it, or the end of the file."""
        newline, scanned_to = await self._newline(end, backward=False)
        self.window.no_newline(start, newline if newline is not None else min(scanned_to, self.window.size))

    async def _newline(self, position: int, *, backward: bool) -> tuple[int | None, int]:
        """Ask the source for the next newline; None when there is none up to the second value."""
        while True:
            step = await self.source.search("\n", position, backward=backward, ignore_case=False)
            if step.offset is not None or not step.more:
                return step.offset, step.scanned_to
            position = step.scanned_to

    async def _persist(self, step: Callable[[], Awaitable[None]]) -> None:
        """Do `step` until it works. A wish or the host's return ends a wait early."""
        delay = FIRST_RETRY
        while True:
            try:
                await step()
            except EncampError as error:
                self.problem = error
                self._on_fetched()
                try:
                    await within(delay, self._wake.wait())
                except TimeoutError:
                    pass
                self._wake.clear()
                delay = min(delay * 2, LAST_RETRY)
            else:
                self.problem = None
                self._on_fetched()
                return
