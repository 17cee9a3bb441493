"""Ports that misbehave, and a person who answers questions: what the SSH tests put in the way."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tui.fleet.hosts import Host


class Person:
    """Answers from lists, and keeps what was asked."""

    def __init__(
        self,
        *,
        accept: bool = True,
        passwords: tuple[str | None, ...] = (),
        passphrases: tuple[str | None, ...] = (),
    ) -> None:
        self.accept = accept
        self.passwords = list(passwords)
        self.passphrases = list(passphrases)
        self.keys: list[tuple[str, str, str]] = []
        self.prompts: list[tuple[str, str]] = []
        self.paths: list[str] = []

    async def accept_host_key(self, host: Host, key_type: str, fingerprint: str) -> bool:
        self.keys.append((host.name, key_type, fingerprint))
        return self.accept

    async def password(self, host: Host, prompt: str) -> str | None:
        self.prompts.append((host.name, prompt))
        return self.passwords.pop(0) if self.passwords else None

    async def passphrase(self, host: Host, path: str) -> str | None:
        self.paths.append(path)
        return self.passphrases.pop(0) if self.passphrases else None


class Link:
    """A TCP port in front of another: counts, slows, cuts and freezes what goes through."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.connections = 0
        self.cut_after: int | None = None
        """Cut a connection when so many bytes of it have gone to the server."""
        self.cuts = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Reset every connection, as a middlebox does."""
        for writer in self._writers:
            writer.transport.abort()

    def freeze(self) -> None:
        """Let nothing through any more, in silence."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Go on."""
        self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        for task in (self._copy(reader, up_writer, up=True), self._copy(up_reader, writer, up=False)):
            running = asyncio.ensure_future(task)
            self._tasks.add(running)
            running.add_done_callback(self._tasks.discard)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        passed = 0
        try:
            while data := await reader.read(4096):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
                passed += len(data)
                if up and self.cut_after is not None and passed > self.cut_after:
                    self.cuts += 1
                    self.cut()
            writer.close()
        except OSError:
            writer.transport.abort()


@asynccontextmanager
async def link_to(port: int) -> AsyncIterator[Link]:
    """A `Link` to a port of this machine."""
    link = Link(port)
    server = await asyncio.start_server(link._serve, "127.0.0.1", 0)
    link.port = server.sockets[0].getsockname()[1]
    try:
        yield link
    finally:
        server.close()
        link.cut()
        for task in list(link._tasks):
            task.cancel()
        await asyncio.gather(*link._tasks, return_exceptions=True)


@asynccontextmanager
async def port_that_says(data: bytes, *, then_close: bool) -> AsyncIterator[int]:
    """A port that sends `data` to whoever connects, and then closes or stays silent."""
    writers = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(data)
        if then_close:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
