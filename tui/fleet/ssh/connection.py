"""A login on a host, and the commands that run over it. Waits are bounded, failures are HostErrors."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import asyncssh

from ..errors import HostError, Unreachable
from ..patience import within
from ..sanitize import printable
from .interactive import Interactive, Terminal
from .login import Login
from .route import Route
from .tunnel import FORBIDDEN, ForwardingForbidden, PortClosed, Tunnel

KEEPALIVE_SECONDS = 15
KEEPALIVE_COUNT = 3
"""A dead peer is noticed after their product; without, reading from it would wait for ever."""

CLOSE_SECONDS = 2.0
"""How long a polite good-bye may take before the connection is cut."""

EXEC_SECONDS = 20.0
"""How long a host may take to start a command."""

BULK_WINDOW, BULK_PACKET = 8 * 1024 * 1024, 128 * 1024
"""Bytes that may come unasked, and in one packet, on a channel for bulk: four times what is usual."""

STDERR_TAIL = 4096
"""Bytes of a command's stderr that are kept."""


class ExecChannel:
    """A command that runs on a host: its stdin and stdout as a stream of bytes, the end of its stderr."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes], connection: SshConnection) -> None:
        self._process = process
        self._connection = connection
        self._stderr: deque[int] = deque(maxlen=STDERR_TAIL)
        self._draining = asyncio.ensure_future(self._drain_stderr())

    async def read(self, limit: int) -> bytes:
        """Up to `limit` bytes of its stdout; empty at the end, and when the connection is lost."""
        try:
            return await self._process.stdout.read(limit)
        except (asyncssh.Error, OSError):
            return b""

    async def write(self, data: bytes) -> None:
        """Send `data` to its stdin. Raises Unreachable when it has ended or the connection is lost."""
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (asyncssh.Error, OSError) as error:
            raise self._connection.lost_error() from error

    @property
    def exit_status(self) -> int | None:
        """Its exit code, or None while it runs and when it ended without one."""
        return self._process.exit_status

    async def wait(self, seconds: float) -> None:
        """Wait for its end and the rest of its stderr, at most `seconds`."""
        await asyncio.wait([self._draining], timeout=seconds)
        try:
            await within(seconds, self._process.wait_closed())
        except TimeoutError:
            pass

    def stderr_tail(self) -> bytes:
        """The last bytes that it wrote to stderr."""
        return bytes(self._stderr)

    async def close(self) -> None:
        """End the command by closing its streams."""
        self._process.close()
        try:
            await within(CLOSE_SECONDS, self._process.wait_closed())
        except (TimeoutError, asyncssh.Error, OSError):
            pass
        self._draining.cancel()

    async def _drain_stderr(self) -> None:
        """Read stderr whatever happens: a full window would stop the command."""
        try:
            while data := await self._process.stderr.read(4096):
                self._stderr.extend(data)
        except (asyncssh.Error, OSError):
            pass


class SshConnection:
    """One login on one host."""

    def __init__(
        self,
        connection: asyncssh.SSHClientConnection,
        login: Login,
        route: Route,
        bastion: SshConnection | None,
    ) -> None:
        self._connection = connection
        self._login = login
        self._route = route
        self._bastion = bastion

    def tunnel(self) -> asyncssh.SSHClientConnection:
        """What a connection that goes through this host is made over; for this package alone."""
        return self._connection

    @property
    def address(self) -> str:
        """`user@host:port` as it was resolved."""
        return self._route.address

    @property
    def banner(self) -> str:
        """What the host showed before the login, as it came."""
        return self._login.banner

    async def open_exec(self, command: str, *, bulk: bool = False) -> ExecChannel:
        """Start `command` under the user's login shell there, without a terminal. Raises HostError.

        With `bulk` more of its output may be on the way at once.
        """
        options = {"window": BULK_WINDOW, "max_pktsize": BULK_PACKET} if bulk else {}
        return ExecChannel(await self._start(command, **options), self)

    async def open_interactive(self, command: str | None, terminal: Terminal | None) -> Interactive:
        """Start `command`, or the login shell, with a terminal like the given one. Raises HostError."""
        options: dict[str, Any] = {}
        if terminal is not None:
            options = {
                "request_pty": "force",
                "term_type": terminal.kind,
                "term_size": (terminal.columns, terminal.rows),
            }
        return Interactive(await self._start(command, **options), self)

    async def _start(self, command: str | None, **options: Any) -> asyncssh.SSHClientProcess[bytes]:
        """Start a process there, without a terminal unless `options` say otherwise. Raises HostError."""
        settings: dict[str, Any] = {"request_pty": False, **options}
        try:
            process = await within(
                EXEC_SECONDS,
                self._connection.create_process(command, encoding=None, x11_forwarding=False, **settings),
            )
        except TimeoutError:
            raise Unreachable(
                f"{self._route.endpoint} did not start a command within {EXEC_SECONDS:.0f} s.",
                "The machine may be overloaded.",
            ) from None
        except asyncssh.ChannelOpenError as error:
            if self.lost:
                raise self.lost_error() from error
            raise HostError(
                f"{self._route.endpoint} lets us in but runs no commands: {printable(error.reason[:200])}.",
                "Too many sessions may be open on this connection, or the account may be for other uses.",
            ) from error
        except (asyncssh.Error, OSError) as error:
            raise self.lost_error() from error
        return process

    async def open_tunnel(self, port: int) -> Tunnel:
        """Connect to `port` of the host itself. Raises ForwardingForbidden, PortClosed, Unreachable."""
        endpoint = self._route.endpoint
        try:
            opening = self._connection.open_connection("localhost", port, encoding=None)
            reader, writer = await within(EXEC_SECONDS, opening)
        except TimeoutError:
            raise PortClosed(f"{endpoint} did not connect to its port {port} in time.") from None
        except asyncssh.ChannelOpenError as error:
            if self.lost:
                raise self.lost_error() from error
            said = printable(error.reason[:200])
            if error.code == FORBIDDEN:
                raise ForwardingForbidden(
                    f"{endpoint} does not let ports be forwarded: {said}.",
                    "Its sshd_config says so (AllowTcpForwarding, PermitOpen), or the key's options in "
                    "authorized_keys do. Everything else of encamp works without.",
                ) from error
            raise PortClosed(
                f"Nothing takes connections on port {port} of {endpoint}: {said}.",
                "Start the program there; it has to listen on localhost or on all addresses.",
            ) from error
        except (asyncssh.Error, OSError) as error:
            raise self.lost_error() from error
        return Tunnel(reader, writer, self)

    @property
    def lost(self) -> bool:
        """Whether the connection has ended."""
        return self._login.lost.is_set()

    async def wait_lost(self) -> None:
        """Wait until the connection has ended."""
        await self._login.lost.wait()

    def lost_error(self) -> Unreachable:
        """Why the connection, or the command on it, is gone."""
        loss = self._login.loss
        if isinstance(loss, asyncssh.ConnectionLost) and "keepalive" in str(loss).lower():
            seconds = KEEPALIVE_SECONDS * KEEPALIVE_COUNT
            return Unreachable(f"{self._route.endpoint} has not answered for {seconds} s.")
        if self._login.lost.is_set():
            return Unreachable(f"The connection to {self._route.endpoint} was lost.")
        return Unreachable(f"The command on {self._route.endpoint} has ended.")

    async def close(self) -> None:
        """Say good-bye, or cut the connection when that takes too long."""
        self._connection.close()
        try:
            await within(CLOSE_SECONDS, self._connection.wait_closed())
        except (TimeoutError, asyncssh.Error, OSError):
            self.abort()
        if self._bastion is not None:
            await self._bastion.close()

    def abort(self) -> None:
        """Cut the connection at once."""
        self._connection.abort()
        if self._bastion is not None:
            self._bastion.abort()
