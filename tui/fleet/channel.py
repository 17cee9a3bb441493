"""The conversation with one agent: JSON lines over one byte stream, requests matched with their answers.

Whoever iterates over the channel drives it: replies are handed to those who wait for them, everything else
comes out of the iteration. There is no queue in between, so the body of that loop must not wait for anything
slow, and never for a request of its own. When the viewer is slow all the same, the bytes wait in the host's
agent, which knows what may be dropped.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

from agent import wire

from .errors import RequestRefused, Unreachable
from .patience import within

CHUNK = 64 * 1024
"""Bytes asked for in one read."""

REQUEST_SECONDS = 30.0
"""How long an answer may take unless the caller says otherwise."""

SILENCE_SECONDS = 30.0
"""An agent sends telemetry every second; one that says nothing for so long hangs, or is gone."""


class Stream(Protocol):
    """A two-way stream of bytes, such as the stdin and stdout of a command on a host."""

    async def read(self, limit: int) -> bytes:
        """Up to `limit` bytes, as soon as there are any; empty when the other side has ended."""
        ...

    async def write(self, data: bytes) -> None:
        """Send `data`; returns when most of it is on its way. Raises Unreachable."""
        ...

    async def close(self) -> None:
        """Give the stream up. Returns within seconds, whatever the other side does."""
        ...


class Lines:
    """Cuts a stream of bytes into lines. What is too long to be a message is dropped and reported once."""

    def __init__(self, on_bad: Callable[[str], None]) -> None:
        self._on_bad = on_bad
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the next bytes and yield the lines that they complete, without their newlines."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole, self._rest = self._rest + line, b""
            if self._skipping:
                self._skipping = False
            elif len(whole) >= wire.MAX_LINE:
                self._too_long()
            elif whole:
                yield whole
        if not self._skipping:
            self._rest += rest
            if len(self._rest) >= wire.MAX_LINE:
                self._rest = b""
                self._skipping = True
                self._too_long()

    def _too_long(self) -> None:
        self._on_bad(f"a line of more than {wire.MAX_LINE} bytes")


class AgentChannel:
    """Requests to one agent, and the messages that come from it by themselves.

    `head` is what was read from the stream already. `on_bad` is told of every line that is no message, with
    a reason; the line is dropped.
    """

    def __init__(
        self, stream: Stream, head: bytes = b"", on_bad: Callable[[str], None] = lambda _: None
    ) -> None:
        self._stream = stream
        self._head = head
        self._on_bad = on_bad
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[wire.Reply | wire.Failure]] = {}
        self.closed = False
        """Whether nothing can be asked any more."""

    async def __aiter__(self) -> AsyncIterator[wire.Message]:
        """Every message but the answers to requests. Ends when the stream ends.

        Raises Unreachable when the agent has been silent for `SILENCE_SECONDS`.
        """
        lines = Lines(self._on_bad)
        try:
            while data := self._head or await self._read():
                self._head = b""
                for line in lines.feed(data):
                    message = self._decode(line)
                    if isinstance(message, wire.Reply | wire.Failure):
                        waiting = self._waiting.pop(message.id, None)
                        if waiting is not None and not waiting.done():
                            waiting.set_result(message)
                    elif message is not None:
                        yield message
                # A flood of bytes that have arrived already must not keep everybody else from running.
                await asyncio.sleep(0)
        finally:
            self._give_up()

    async def request(
        self, method: str, params: dict[str, Any], timeout: float = REQUEST_SECONDS
    ) -> dict[str, Any]:
        """Ask the agent and return its answer; somebody has to be iterating over the channel.

        Raises RequestRefused when the agent says no, Unreachable when there is no answer within `timeout`
        seconds or the connection ends first: what was asked for may then have happened or not.
        """
        if self.closed:
            raise Unreachable("The connection to the host is closed.", "It is made anew by itself.")
        number = next(self._ids)
        waiting: asyncio.Future[wire.Reply | wire.Failure] = asyncio.get_running_loop().create_future()
        try:
            line = wire.encode(wire.Request(number, method, params))
        except wire.WireError as error:
            raise RequestRefused("too-large", f"The request {method} is too large: {error}.") from error
        self._waiting[number] = waiting
        try:
            answer = await within(timeout, self._ask(line, waiting))
        except TimeoutError:
            raise Unreachable(
                f"The agent did not answer the request {method} within {timeout:.0f} s.",
                "It may still carry it out: look at the state before asking again.",
            ) from None
        finally:
            self._waiting.pop(number, None)
        if isinstance(answer, wire.Failure):
            raise RequestRefused(answer.code, answer.message, answer.hint)
        return answer.result

    async def close(self) -> None:
        """Close the stream; whoever waits for an answer gets Unreachable."""
        self._give_up()
        await self._stream.close()

    async def _ask(
        self, line: bytes, waiting: asyncio.Future[wire.Reply | wire.Failure]
    ) -> wire.Reply | wire.Failure:
        try:
            await self._stream.write(line)
        except Unreachable:
            self.closed = True  # the reader sees it a moment later; nobody should ask again in between
            raise
        return await waiting

    async def _read(self) -> bytes:
        try:
            return await within(SILENCE_SECONDS, self._stream.read(CHUNK))
        except TimeoutError:
            raise Unreachable(f"The agent has said nothing for {SILENCE_SECONDS:.0f} s.") from None

    def _decode(self, line: bytes) -> wire.Message | None:
        try:
            message = wire.decode(line)
        except wire.WireError as error:
            self._on_bad(str(error))
            return None
        if isinstance(message, wire.Request):
            self._on_bad("a request, which only viewers send")
            return None
        return message

    def _give_up(self) -> None:
        self.closed = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(
                    Unreachable(
                        "The connection was lost before the agent answered.",
                        "What was asked for may have happened: look at the state before asking again.",
                    )
                )
        self._waiting.clear()
