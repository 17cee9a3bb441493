"""Pieces of files over a command of their own on the host: base64 and the daemon would halve the speed."""

from __future__ import annotations

import asyncio
import json
from collections import deque

from .agent_command import NOISE_BYTES, start_command
from .errors import HostError, RequestRefused, Unreachable
from .patience import within
from .sanitize import printable
from .session import Session
from .ssh.client import ExecChannel

PIECE = 1024 * 1024
"""Bytes of one piece, at most."""

HEAD_BYTES = 1024
"""Read at once where a head is expected; of what follows exactly the rest is, which saves copies."""

SILENCE_SECONDS = 60.0
"""How long a piece may let wait for its next byte."""


class Bulk:
    """Answers come in the order of the questions. Once broken it stays so."""

    def __init__(self, channel: ExecChannel, rest: bytes) -> None:
        self._channel = channel
        self._rest = rest
        self._waiting: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._some = asyncio.Event()
        self._receiving = asyncio.ensure_future(self._receive())

    @classmethod
    async def open(cls, session: Session) -> Bulk:
        """Start the command. Raises HostError: Unreachable, or when the host runs only one at a time."""
        return cls(*await start_command(session, "send"))

    @property
    def broken(self) -> bool:
        """Whether it can be asked no more."""
        return self._receiving.done()

    async def read(self, run: str, path: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes, at most `PIECE`; fewer where the file ends.

        Raises RequestRefused, Unreachable.
        """
        if self.broken:
            raise Unreachable("The connection to the host was lost.")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((length, answer))
        self._some.set()
        await self._channel.write(json.dumps([run, path, offset, length]).encode() + b"\n")
        return await answer

    async def close(self) -> None:
        """End the command."""
        self._receiving.cancel()
        await asyncio.wait([self._receiving])
        await self._channel.close()

    async def _receive(self) -> None:
        try:
            while True:
                await self._some.wait()
                while self._waiting:
                    length, answer = self._waiting[0]
                    data = await self._answer(length)
                    self._waiting.popleft()
                    if answer.done():
                        continue  # nobody waits for it any more
                    if isinstance(data, bytes):
                        answer.set_result(data)
                    else:
                        answer.set_exception(data)
                self._some.clear()
        except HostError:
            pass  # told below, to all who wait
        finally:
            for _, answer in self._waiting:
                if not answer.done():
                    answer.set_exception(Unreachable("The connection to the host was lost."))

    async def _answer(self, length: int) -> bytes | RequestRefused:
        while b"\n" not in self._rest:
            if len(self._rest) > NOISE_BYTES:
                raise HostError("The host answers in a way that makes no sense.")
            self._rest += await self._more(HEAD_BYTES)
        head, _, self._rest = self._rest.partition(b"\n")
        count, _, why = head.partition(b" ")
        if count == b"-1":
            return RequestRefused("io", printable(why.decode("ascii", "replace")[:300]))
        if not count.isdigit() or int(count) > length:
            raise HostError("The host answers in a way that makes no sense.")
        size = int(count)
        parts = [self._rest]
        left = size - len(self._rest)
        while left > 0:
            parts.append(await self._more(left))
            left -= len(parts[-1])
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]

    async def _more(self, limit: int) -> bytes:
        try:
            data = await within(SILENCE_SECONDS, self._channel.read(limit))
        except TimeoutError:
            data = b""
        if not data:
            raise Unreachable("The connection to the host was lost.")
        return data
