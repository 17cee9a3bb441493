"""A connection to a port of a host, through its SSH connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh

from ..errors import EncampError
from ..patience import within

if TYPE_CHECKING:
    from .connection import SshConnection

CLOSE_SECONDS = 2.0
"""How long the host may take to confirm the end."""

FORBIDDEN = asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED


class ForwardingForbidden(EncampError):
    """The host's sshd forwards no ports, or not this one."""


class PortClosed(EncampError):
    """Nothing on the host takes connections on the port."""


class Tunnel:
    """Bytes to and from one port there."""

    def __init__(
        self,
        reader: asyncssh.SSHReader[bytes],
        writer: asyncssh.SSHWriter[bytes],
        connection: SshConnection,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._connection = connection

    async def read(self, limit: int) -> bytes:
        """Up to `limit` bytes; empty when the other side has finished. Raises Unreachable: cut off."""
        try:
            data = await self._reader.read(limit)
        except (asyncssh.Error, OSError) as error:
            raise self._connection.lost_error() from error
        if not data and self._connection.lost:
            raise self._connection.lost_error()
        return data

    async def write(self, data: bytes) -> None:
        """Send `data`. Raises Unreachable."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (asyncssh.Error, OSError) as error:
            raise self._connection.lost_error() from error

    def write_eof(self) -> None:
        """Say that nothing more will be sent; what comes can still be read."""
        try:
            self._writer.write_eof()
        except (asyncssh.Error, OSError):
            pass  # the other side has gone: it needs no telling

    async def wait_closed(self) -> None:
        """Wait until neither side sends anything any more."""
        try:
            await self._writer.wait_closed()
        except (asyncssh.Error, OSError):
            pass

    async def close(self) -> None:
        """End it in both directions."""
        self._writer.close()
        try:
            await within(CLOSE_SECONDS, self.wait_closed())
        except TimeoutError:
            pass
