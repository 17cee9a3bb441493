"""Connections to hosts: `SshClient.connect` makes one, whatever it takes on the way.

No type of asyncssh leaves this package.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import asyncssh

from .. import paths
from ..errors import HostError, HostKeyUnknown
from ..hosts import Host
from ..prompts import Prompts
from . import failures
from .attempt import Attempt, KeyLocked, KeyUnknown
from .connection import ExecChannel, SshConnection
from .keys import HostKeys, fingerprint
from .login import Login
from .route import Route, route_of
from .secrets import Secrets

__all__ = ["ExecChannel", "SshClient", "SshConnection", "forget_key"]

LOST_TRIES = 3
"""Attempts when the host hangs up before the login, as sshd does with some of many at once (MaxStartups)."""

AT_ONCE = 8
"""Logins that one server gets at a time."""

MAX_BASTIONS = 8


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
        bastion = None
        if route.bastion is not None:
            bastion = await self._connect(route.bastion, prompts, depth + 1)
        keys = HostKeys(paths.known_hosts_file(), route.known_hosts)
        tunnel = None if bastion is None else bastion.tunnel()
        try:
            name = None if depth else host.name
            attempt = Attempt(host, route, keys, prompts, self.secrets, tunnel, name)
            connection, login = await self._insist(attempt)
        except BaseException:
            if bastion is not None:
                await bastion.close()
            raise
        return SshConnection(connection, login, route, bastion)

    async def _insist(self, attempt: Attempt) -> tuple[asyncssh.SSHClientConnection, Login]:
        """Make an attempt until it gets through, asking the user what it stopped for. Raises HostError."""
        lost = 0
        while True:
            try:
                async with self._gate(attempt.route):
                    return await attempt.make()
            except KeyUnknown as unknown:
                await self._ask_about_key(attempt, unknown.key)
            except KeyLocked as locked:
                if not await self.secrets.unlock(locked.path, attempt.host, attempt.prompts):
                    attempt.locked.append(locked.path)
            except failures.LostBeforeLogin:
                lost += 1
                if lost == LOST_TRIES:
                    raise
                await asyncio.sleep(random.uniform(0.1, 0.5) * lost)

    async def _ask_about_key(self, attempt: Attempt, key: asyncssh.SSHKey) -> None:
        """Have the user accept `key`, unless another connection just did. Raises HostKeyUnknown."""
        route, keys = attempt.route, attempt.keys
        async with self.secrets.turn(route.key_name):
            if keys.trust(route.key_name).host_keys:
                return
            kind, shown = key.get_algorithm(), fingerprint(key)
            if not await attempt.prompts.accept_host_key(attempt.host, kind, shown):
                raise HostKeyUnknown(
                    f"{route.endpoint} is new; nobody has accepted its host key {kind} {shown}.",
                    "Compare the fingerprint with the provider's page, then accept it: connect from the app "
                    "or a terminal, or give --accept-new-host-key.",
                )
            try:
                keys.accept(route.key_name, key)
            except OSError as error:
                raise HostError(
                    f"The accepted host key cannot be kept: {keys.path}: {error.strerror}.",
                    "Make that folder writable, or set ENCAMP_STATE_DIR.",
                ) from error

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
