"""Connections to hosts: `connect` makes one, `SshConnection.open_exec` runs a command over it.

No type of asyncssh leaves this package. Every wait is bounded, every failure is a HostError.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import asyncssh

from .. import paths
from ..errors import HostError, HostKeyUnknown, Unreachable
from ..hosts import Host
from ..patience import within
from ..prompts import Prompts
from . import failures
from .identities import load
from .keys import HostKeys, Trust, fingerprint
from .login import Login, Patience, Secrets
from .route import Route, route_of

KEEPALIVE_SECONDS = 15
KEEPALIVE_COUNT = 3
"""A dead peer is noticed after their product; without, reading from it would wait for ever."""

CLOSE_SECONDS = 2.0
"""How long a polite good-bye may take before the connection is cut."""

EXEC_SECONDS = 20.0
"""How long a host may take to start a command."""

LOST_TRIES = 3
"""Attempts when the host hangs up before the login, as sshd does with some of many at once (MaxStartups)."""

AT_ONCE = 8
"""Logins that one server gets at a time."""

MAX_BASTIONS = 8

STDERR_TAIL = 4096
"""Bytes of a command's stderr that are kept."""


class SshClient:
    """Makes connections, several at once, and remembers what the user typed for the next ones."""

    def __init__(self) -> None:
        self.secrets = Secrets()
        self._gates: dict[str, asyncio.Semaphore] = {}

    async def connect(self, host: Host, prompts: Prompts) -> SshConnection:
        """Log in on `host`, through its bastions where it has any, asking the user through `prompts`.

        Raises HostError: Unreachable, AuthFailed, HostKeyUnknown, HostKeyChanged, or HostError itself when it
        is the configuration.
        """
        return await self._connect(host, prompts, 0)

    async def _connect(self, host: Host, prompts: Prompts, depth: int) -> SshConnection:
        if depth > MAX_BASTIONS:
            raise HostError(
                f"{host.hostname} is behind more than {MAX_BASTIONS} bastions.",
                "Look for a loop in ~/.ssh/config.",
            )
        route = await asyncio.to_thread(route_of, host)
        keys = HostKeys(paths.known_hosts_file(), route.known_hosts)
        bastion = None
        if route.bastion is not None:
            bastion = await self._connect(route.bastion, prompts, depth + 1)
        lost = 0
        try:
            while True:
                try:
                    async with self._gate(route):
                        connection, login = await _login(host, route, keys, prompts, self.secrets, bastion)
                    return SshConnection(connection, login, route, bastion)
                except _KeyUnknown as unknown:
                    await _ask_about_key(host, route, keys, unknown.key, prompts, self.secrets)
                except failures.LostBeforeLogin:
                    lost += 1
                    if lost == LOST_TRIES:
                        raise
                    await asyncio.sleep(random.uniform(0.1, 0.5) * lost)
        except BaseException:
            if bastion is not None:
                await bastion.close()
            raise

    def _gate(self, route: Route) -> asyncio.Semaphore:
        """At most `AT_ONCE` logins at a time go to one server: sshd turns some of many away."""
        return self._gates.setdefault(route.endpoint, asyncio.Semaphore(AT_ONCE))


def forget_key(host: Host, path: Path | None = None) -> int:
    """Drop the accepted keys of `host` and return how many there were.

    Raises HostError when the file cannot be written. Keys in the user's own known_hosts stay.
    """
    path = path or paths.known_hosts_file()
    try:
        return HostKeys(path).forget(route_of(host).key_name)
    except OSError as error:
        raise HostError(f"{path} cannot be written: {error.strerror}.") from error


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

    async def open_exec(self, command: str) -> ExecChannel:
        """Start `command` under the user's login shell there, without a terminal. Raises HostError."""
        try:
            process = await within(
                EXEC_SECONDS,
                self._connection.create_process(
                    command, encoding=None, request_pty=False, x11_forwarding=False
                ),
            )
        except TimeoutError:
            raise Unreachable(
                f"{self._route.endpoint} did not start a command within {EXEC_SECONDS:.0f} s.",
                "The machine may be overloaded.",
            ) from None
        except asyncssh.ChannelOpenError as error:
            if self._login.lost.is_set():
                raise self.lost_error() from error
            raise HostError(
                f"{self._route.endpoint} lets us in but refuses to run commands: {error.reason}.",
                "Too many sessions may be open on this connection, or the account may be for other uses.",
            ) from error
        except (asyncssh.Error, OSError) as error:
            raise self.lost_error() from error
        return ExecChannel(process, self)

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


class _KeyUnknown(Exception):
    """The host is new: its key has to be accepted first."""

    def __init__(self, key: asyncssh.SSHKey) -> None:
        super().__init__()
        self.key = key


async def _ask_about_key(
    host: Host, route: Route, keys: HostKeys, key: asyncssh.SSHKey, prompts: Prompts, secrets: Secrets
) -> None:
    """Have the user accept `key`, unless another connection just did. Raises HostKeyUnknown."""
    async with secrets.turn(route.key_name):
        if keys.trust(route.key_name).host_keys:
            return
        shown = fingerprint(key)
        if not await prompts.accept_host_key(host, key.get_algorithm(), shown):
            raise HostKeyUnknown(
                f"{route.endpoint} is new; nobody has accepted its host key {key.get_algorithm()} {shown}.",
                "Compare the fingerprint with the provider's page, then accept it: connect from the app or a "
                "terminal, or give --accept-new-host-key.",
            )
        try:
            keys.accept(route.key_name, key)
        except OSError as error:
            raise HostError(
                f"The accepted host key cannot be kept: {keys.path}: {error.strerror}.",
                "Make that folder writable, or set ENCAMP_STATE_DIR.",
            ) from error


async def _login(
    host: Host,
    route: Route,
    keys: HostKeys,
    prompts: Prompts,
    secrets: Secrets,
    bastion: SshConnection | None,
) -> tuple[asyncssh.SSHClientConnection, Login]:
    """One attempt to connect and log in. Raises HostError, _KeyUnknown."""
    trust = keys.trust(route.key_name)
    login = Login(host, route, prompts, secrets, Patience())
    try:
        return await _in_time(_attempt(host, route, trust, login, bastion), route, login), login
    except asyncssh.HostKeyNotVerifiable as error:
        if login.shown_key is None:
            raise failures.key_refused(host, route, str(error)) from error
        if not trust.host_keys:
            raise _KeyUnknown(login.shown_key) from error
        raise failures.key_changed(host, route, trust, login.shown_key, keys.path) from error
    except (asyncssh.Error, OSError, ValueError) as error:
        raise failures.explain(error, route, login) from error


async def _in_time(
    attempt: Coroutine[Any, Any, asyncssh.SSHClientConnection], route: Route, login: Login
) -> asyncssh.SSHClientConnection:
    """Wait for an attempt as long as its patience lasts. Raises Unreachable."""
    task = asyncio.ensure_future(attempt)
    try:
        while not task.done():
            remaining = login.patience.remaining()
            if remaining <= 0:
                raise failures.timed_out(route, connected=login.connected)
            await asyncio.wait([task], timeout=remaining)
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=CLOSE_SECONDS)


async def _attempt(
    host: Host, route: Route, trust: Trust, login: Login, bastion: SshConnection | None
) -> asyncssh.SSHClientConnection:
    identities, login.unusable_keys = await load(route.key_files, login.passphrase)

    async def passphrase(name: str) -> str | None:
        path = Path(name)
        return await login.passphrase(path, await asyncio.to_thread(path.read_bytes))

    options: dict[str, Any] = {}
    if "HostKeyAlgorithms" not in route.settings:
        options["server_host_key_algs"] = trust.algorithms()
    if "Ciphers" not in route.settings:
        # Half the CPU time of asyncssh's and sshd's first choice.
        options["encryption_algs"] = "^aes128-gcm@openssh.com"
    if route.own_keys_only:
        options["agent_identities"] = [identity.public for identity in identities]
    return await asyncssh.connect(
        host.hostname,
        port=() if host.port is None else host.port,
        username=() if host.user is None else host.user,
        tunnel=None if bastion is None else bastion.tunnel(),
        client_factory=lambda: login,
        # None turns ssh-agent off as well.
        client_keys=[identity.offer for identity in identities] or (None if route.own_keys_only else []),
        passphrase=passphrase,
        known_hosts=lambda *_: trust.for_asyncssh(),
        x509_trusted_certs=None,
        agent_forwarding=False,
        x11_forwarding=False,
        connect_timeout=None,  # `Patience` knows when a person is being waited for, these do not
        login_timeout=0,
        keepalive_interval=KEEPALIVE_SECONDS,
        keepalive_count_max=KEEPALIVE_COUNT,
        encoding=None,
        **options,
    )
