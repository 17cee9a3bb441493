"""Ports of a host on this machine: they stay open here while the connection to the host comes and goes."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import local_ports
from .errors import EncampError, HostError, Unreachable
from .hosts import Host
from .patience import within
from .prompts import Prompts
from .session import FIRST_RETRY, JITTER, LAST_RETRY
from .ssh.client import SshClient, SshConnection
from .ssh.tunnel import ForwardingForbidden, PortClosed, Tunnel

CHUNK = 64 * 1024
"""Bytes that are handed on at a time."""

PATIENCE_SECONDS = 20.0
"""How long somebody who connects here waits for the host to come back."""

HARMLESS_PORT = 1
"""Where nothing listens: whether the host forwards ports is tried there, as some programs mind a visit."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be opened; without a local port the same one as there, if it is free, else any."""

    remote: int
    local: int | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A port that is open. `taken_by` has the port that would have been taken, had it been free."""

    local: int
    remote: int
    taken_by: str | None = None


class Forwarder:
    """The forwarded ports of one host. `say` is told what changes, in sentences."""

    def __init__(
        self,
        host: Host,
        prompts: Prompts,
        wishes: Sequence[Wish],
        say: Callable[[str], None],
        client: SshClient | None = None,
    ) -> None:
        self._host = host
        self._prompts = prompts
        self._wishes = wishes
        self._say = say
        self._client = client or SshClient()
        self._connection: SshConnection | None = None
        self._connected = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._passing: set[asyncio.Task[None]] = set()
        self._closed_ports: set[int] = set()
        """Ports of the host of which it was said that nothing is there."""

    async def open(self) -> list[Opened]:
        """Take the ports here, connect, and begin. Raises UsageError, HostError, ForwardingForbidden."""
        opened = [self._take(wish) for wish in self._wishes]
        self._connection = await self._client.connect(self._host, self._prompts)
        for port in self._wishes:
            await self._check(self._connection, port.remote)
        self._connected.set()
        for listening, wish in zip(self._sockets, self._wishes, strict=True):
            self._servers.append(await asyncio.start_server(self._handler(wish.remote), sock=listening))
        return opened

    async def serve(self) -> None:
        """Keep the connection for ever. Raises the HostError that only a person can help with."""
        while True:
            assert self._connection is not None
            await self._connection.wait_lost()
            self._connected.clear()
            self._say(f"the connection to {self._host.name} was lost; it is being made again")
            await self._connection.close()
            self._connection = await self._reconnect()
            self._connected.set()
            self._say(f"{self._host.name} is connected again")

    async def close(self) -> None:
        """Close the ports, the connections through them, and the one to the host."""
        for server in self._servers:
            server.close()
        for listening in self._sockets:
            listening.close()
        for task in self._passing:
            task.cancel()
        if self._passing:
            await asyncio.wait(self._passing)
        if self._connection is not None:
            await self._connection.close()

    def _take(self, wish: Wish) -> Opened:
        taken_by = None
        if wish.local:
            listening = local_ports.take_exactly(wish.local)
        else:
            try:
                listening = local_ports.take(wish.remote)
            except OSError as error:
                taken_by = local_ports.holder(wish.remote) or error.strerror or "another program"
                listening = local_ports.take(0)
        self._sockets.append(listening)
        return Opened(listening.getsockname()[1], wish.remote, taken_by)

    @staticmethod
    async def _check(connection: SshConnection, port: int) -> None:
        """Raises ForwardingForbidden when the host will not forward to `port`."""
        for tried in (HARMLESS_PORT, port):
            try:
                await (await connection.open_tunnel(tried)).close()
            except PortClosed:
                return
            except ForwardingForbidden:
                if tried == port:  # else there may be exceptions for some ports
                    raise
            else:
                return

    async def _reconnect(self) -> SshConnection:
        failures = 0
        while True:
            try:
                return await self._client.connect(self._host, self._prompts)
            except HostError as error:
                if not error.retryable:
                    raise
            delay = min(FIRST_RETRY * 2**failures, LAST_RETRY)
            await asyncio.sleep(delay * random.uniform(1 - JITTER, 1 + JITTER))
            failures += 1

    def _handler(self, port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._pass(port, reader, writer))
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)

        return accept

    async def _pass(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand bytes on between a connection here and one there until both have ended, or one broke."""
        tunnel = None
        try:
            tunnel = await self._tunnel(port)
            up = asyncio.ensure_future(_send(reader, tunnel))
            down = asyncio.ensure_future(_receive(tunnel, writer))
            closed = asyncio.ensure_future(tunnel.wait_closed())
            try:
                await down
                await asyncio.wait([up, closed], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (up, down, closed):
                    task.cancel()
                await asyncio.wait([up, down, closed])
            writer.close()
        except (EncampError, OSError):
            _break(writer)  # whoever connected here sees it break, as without us
        except asyncio.CancelledError:
            _break(writer)
            raise
        finally:
            if tunnel is not None:
                await tunnel.close()

    async def _tunnel(self, port: int) -> Tunnel:
        """A connection to a port there, once the host is connected; what is wrong is said once."""
        try:
            await within(PATIENCE_SECONDS, self._connected.wait())
        except TimeoutError:
            raise Unreachable(f"{self._host.name} is not connected.") from None
        assert self._connection is not None
        try:
            tunnel = await self._connection.open_tunnel(port)
        except (PortClosed, ForwardingForbidden) as error:
            if port not in self._closed_ports:
                self._closed_ports.add(port)
                self._say(error.message)
            raise
        self._closed_ports.discard(port)
        return tunnel


def _break(writer: asyncio.StreamWriter) -> None:
    """Reset the connection: an ordinary end would pass for a complete answer."""
    connection = writer.get_extra_info("socket")
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass  # it has ended already
    writer.transport.abort()


async def _send(reader: asyncio.StreamReader, tunnel: Tunnel) -> None:
    try:
        while data := await reader.read(CHUNK):
            await tunnel.write(data)
    except (EncampError, OSError):
        await tunnel.close()
        return
    tunnel.write_eof()


async def _receive(tunnel: Tunnel, writer: asyncio.StreamWriter) -> None:
    while data := await tunnel.read(CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
