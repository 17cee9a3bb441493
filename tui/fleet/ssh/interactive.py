"""A shell or command on a host for somebody at a terminal, or for a pipe: all its streams, as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import asyncssh

from ..errors import HostError
from ..patience import within

if TYPE_CHECKING:
    from .connection import SshConnection

END_SECONDS = 5.0
"""How long the host may take to say how a command ended that has closed its streams."""


class Terminal(NamedTuple):
    """What the user sits at: the value of TERM, columns and rows."""

    kind: str
    columns: int
    rows: int


class Interactive:
    """It runs until its streams end. With a terminal, errors come with the output."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes], connection: SshConnection) -> None:
        self._process = process
        self._connection = connection

    async def read(self, limit: int) -> bytes:
        """Up to `limit` bytes of its output; empty at the end, also when the connection is lost."""
        return await _read(self._process.stdout, limit)

    async def read_error(self, limit: int) -> bytes:
        """Up to `limit` bytes of what it writes to stderr, likewise."""
        return await _read(self._process.stderr, limit)

    async def write(self, data: bytes) -> bool:
        """Send input; False when it takes no more."""
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (asyncssh.Error, OSError):
            return False
        return True

    def write_eof(self) -> None:
        """Say that there is no more input."""
        try:
            self._process.stdin.write_eof()
        except (asyncssh.Error, OSError):
            pass  # it has ended

    def resize(self, terminal: Terminal) -> None:
        """Tell it that the window has another size now."""
        try:
            self._process.change_terminal_size(terminal.columns, terminal.rows)
        except (asyncssh.Error, OSError):
            pass  # it has ended

    async def wait(self) -> int:
        """How it ended, as a shell says it: an exit code, or 128 and the number of a signal.

        Raises Unreachable when the connection was lost, HostError when the host does not say.
        """
        try:
            await within(END_SECONDS, self._process.wait_closed())
        except (TimeoutError, asyncssh.Error, OSError):
            pass
        code = self._process.returncode
        if code is not None:
            return code if code >= 0 else 128 - code
        if self._connection.lost:
            raise self._connection.lost_error()
        raise HostError("The host ended the session without saying how.")

    def close(self) -> None:
        """End it."""
        self._process.close()


async def _read(reader: asyncssh.SSHReader[bytes], limit: int) -> bytes:
    try:
        return await reader.read(limit)
    except (asyncssh.Error, OSError):
        return b""
