"""One connected viewer: its incoming lines, and what waits to be sent to it.

What a viewer may cost is bounded whatever it does. Replies and changes queue up to a limit and stop the
reading of further requests; telemetry keeps only its newest value; logs wait in their files. Every viewer is
written to by itself, so none waits for another.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from typing import Deque, Dict, List, Optional, Protocol, Set, Tuple

from . import logs, wire

log = logging.getLogger("encamp")

BUFFER_BYTES = 256 * 1024
"""Bytes handed to the kernel's and the loop's keeping before writing stops: the price of a change of mind."""
QUEUE_PAUSE = 1024 * 1024
"""Bytes of queued replies at which no further request is read, and no progress is added."""
QUEUE_LIMIT = 8 * 1024 * 1024
"""Bytes of queued changes at which the viewer is dropped: it comes back and is told the present."""
MAX_REQUESTS = 32
"""Requests of one viewer that run at the same time; the next ones wait unread."""
MAX_FOLLOWED = 256
"""Streams that one viewer may follow."""
LONG_BYTES = 32 * 1024
"""Answers from this length on wait for everything that is shorter: files do not delay telemetry."""
LOGS_PER_TURN = 4
"""Log chunks and long answers sent before the loop gets its turn."""
POLL_SECONDS = 0.1
"""How often followed files are looked at while they do not grow."""
STALL_SECONDS = 300.0
"""A viewer that takes nothing for so long is gone, even if its connection does not know yet."""
LINGER_SECONDS = 10.0
"""How long a viewer that has finished sending may take to read what is left."""


class Hub(Protocol):
    """What a viewer needs of the daemon."""

    def greet(self, viewer: Viewer) -> None:
        """Send everything a new viewer is to know."""

    def serve(self, viewer: Viewer, request: wire.Request) -> None:
        """Start to serve a request; `viewer.answer` is called exactly once for it."""

    def left(self, viewer: Viewer) -> None:
        """The connection is gone."""


class Viewer(asyncio.Protocol):
    """The daemon's end of one connection."""

    def __init__(self, hub: Hub) -> None:
        self.bad_lines = 0
        self.dropped_bytes = 0
        """Progress and changes that were not sent because the viewer was slow."""
        self._hub = hub
        self._transport: Optional[asyncio.Transport] = None
        self._loop = asyncio.get_running_loop()
        self._partial = b""
        self._skipping = False
        self._lines: Deque[bytes] = collections.deque()
        self._running: Set[int] = set()
        self._queue: Deque[bytes] = collections.deque()
        self._long: Deque[bytes] = collections.deque()
        self._queued = 0
        self._latest: Dict[str, bytes] = {}
        self._followed: Dict[Tuple[str, int, str], logs.Follower] = {}
        self._paused = False
        self._ending = False
        self._turn: Optional[asyncio.Handle] = None
        self._stall: Optional[asyncio.TimerHandle] = None

    # --- the connection ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the viewer."""
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=BUFFER_BYTES, low=BUFFER_BYTES // 4)
        self._transport = transport
        self._hub.greet(self)

    def connection_lost(self, exc: Optional[Exception]) -> None:  # noqa: ARG002 (asyncio's interface)
        """Forget everything that waits; requests that run come to their end without us."""
        self._transport = None
        for handle in (self._turn, self._stall):
            if handle is not None:
                handle.cancel()
        for follower in self._followed.values():
            follower.close()
        self._followed.clear()
        self._queue.clear()
        self._long.clear()
        self._latest.clear()
        self._lines.clear()
        self._hub.left(self)

    def eof_received(self) -> bool:
        """The viewer has finished sending: finish its requests, send what is left, then close."""
        self._ending = True
        self._followed_close()
        self._loop.call_later(LINGER_SECONDS, self.abort)
        self._wake()
        return True

    def pause_writing(self) -> None:
        """The loop holds enough unsent bytes."""
        self._paused = True
        self._stall = self._loop.call_later(STALL_SECONDS, self.abort)

    def resume_writing(self) -> None:
        """The viewer took most of them."""
        self._paused = False
        if self._stall is not None:
            self._stall.cancel()
        self._wake()

    def abort(self) -> None:
        """Close the connection without sending what is left."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Send what is left and close the connection."""
        if self._transport is None:
            return
        self._followed_close()
        for line in (*self._queue, *self._long):
            self._transport.write(line)
        self._queue.clear()
        self._long.clear()
        self._transport.close()
        self._loop.call_later(LINGER_SECONDS, self.abort)

    # --- in ------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Split into lines; one over the limit is skipped up to its end and refused."""
        *lines, rest = (self._partial + data).split(b"\n")
        if self._skipping and lines:
            self._skipping = False
            del lines[0]
        if len(rest) >= wire.MAX_LINE:
            if not self._skipping:
                self._refuse_line(f"a line is over the limit of {wire.MAX_LINE} bytes")
            self._skipping = True
        self._partial = b"" if self._skipping else rest
        self._lines.extend(line for line in lines if line)
        self._take_lines()

    def _take_lines(self) -> None:
        while self._lines and len(self._running) < MAX_REQUESTS and self._queued < QUEUE_PAUSE:
            self._take(self._lines.popleft())
        if self._transport is None or self._transport.is_closing():
            return
        if self._lines:
            self._transport.pause_reading()
        elif not self._transport.is_reading():
            self._transport.resume_reading()

    def _take(self, line: bytes) -> None:
        try:
            message = wire.decode(line)
        except wire.WireError as error:
            self._refuse_line(str(error))
            return
        if not isinstance(message, wire.Request):
            return  # of a kind that only agents send, or of one that is not known yet
        if message.id in self._running:
            self._refuse_line(f"request {message.id} is running already")
            return
        self._running.add(message.id)
        self._hub.serve(self, message)

    def _refuse_line(self, why: str) -> None:
        self.bad_lines += 1
        self.send(wire.encode(wire.Failure(0, "bad-message", why[:500])))

    # --- out -----------------------------------------------------------------------------------------------

    def answer(self, message: wire.Message, request_id: int) -> None:
        """Send the `Reply` or `Failure` to a request. Raises WireError when it is too long."""
        line = wire.encode(message)
        self._running.discard(request_id)
        self._put(self._long if len(line) >= LONG_BYTES else self._queue, line)
        self._take_lines()

    def send(self, line: bytes) -> None:
        """Queue an encoded message that must arrive; a viewer that lets too many pile up is dropped."""
        self._put(self._queue, line)

    def _put(self, queue: Deque[bytes], line: bytes) -> None:
        if self._transport is None or not line:
            return
        if self._queued + len(line) > QUEUE_LIMIT:
            self.dropped_bytes += self._queued
            log.warning("viewer dropped: %d bytes unsent", self._queued)
            self.abort()
            return
        queue.append(line)
        self._queued += len(line)
        self._wake()

    def offer(self, line: bytes) -> None:
        """Queue an encoded message that may be left out when the viewer is slow."""
        if self._queued < QUEUE_PAUSE:
            self.send(line)
        else:
            self.dropped_bytes += len(line)

    def update(self, key: str, line: bytes) -> None:
        """Queue an encoded message in the place of an unsent one of the same `key`."""
        if self._transport is not None:
            self._latest.pop(key, None)
            self._latest[key] = line
            self._wake()

    def follow(self, follower: logs.Follower) -> bool:
        """Send this stream from now on, in place of an earlier follower; False when there are too many."""
        if follower.key not in self._followed and len(self._followed) >= MAX_FOLLOWED:
            return False
        self.unfollow(follower.key)
        self._followed[follower.key] = follower
        self._wake()
        return True

    def unfollow(self, key: Tuple[str, int, str]) -> None:
        """Stop sending a stream."""
        follower = self._followed.pop(key, None)
        if follower is not None:
            follower.close()

    def _followed_close(self) -> None:
        for key in list(self._followed):
            self.unfollow(key)

    def _wake(self, delay: float = 0.0) -> None:
        """Have `_pump` run soon. Never at once: what is said in one go is then sent in one go."""
        if self._turn is not None:
            if delay:
                return
            self._turn.cancel()
        self._turn = self._loop.call_later(delay, self._pump) if delay else self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._turn = None
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        turns = LOGS_PER_TURN
        while not self._paused:
            lines = self._take_queued()
            if lines:
                transport.write(b"".join(lines))
            elif self._ending and not (self._running or self._lines or self._long):
                transport.close()
                return
            elif not turns:
                self._wake()
                break
            else:
                lines = [line for line in (self._take_long(), self._take_log()) if line]
                if not lines:
                    if self._followed:
                        self._wake(POLL_SECONDS)
                    break
                turns -= 1
                transport.write(b"".join(lines))
        if self._lines:
            self._take_lines()

    def _take_queued(self) -> List[bytes]:
        lines: List[bytes] = []
        size = 0
        while size < BUFFER_BYTES and (self._queue or self._latest):
            if self._queue:
                line = self._queue.popleft()
                self._queued -= len(line)
            else:
                line = self._latest.pop(next(iter(self._latest)))
            lines.append(line)
            size += len(line)
        return lines

    def _take_long(self) -> Optional[bytes]:
        if not self._long:
            return None
        line = self._long.popleft()
        self._queued -= len(line)
        return line

    def _take_log(self) -> Optional[bytes]:
        """The next piece of a followed stream; the streams take turns."""
        for key in list(self._followed):
            follower = self._followed[key]
            try:
                line = follower.take()
            except OSError as error:
                log.warning("cannot read %s: %s", key, error)
                self.unfollow(key)
                continue
            if line is not None:
                self._followed[key] = self._followed.pop(key)
                return line
        return None
