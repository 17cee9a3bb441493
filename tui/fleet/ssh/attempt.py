"""One attempt to get through to a host: connect, check its key, log in.

What only a person can settle ends the attempt: nobody is asked while the host waits, except for a password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from ..hosts import Host
from ..prompts import Prompts
from . import failures
from .connection import CLOSE_SECONDS, KEEPALIVE_COUNT, KEEPALIVE_SECONDS
from .identities import load
from .keys import HostKeys, Trust
from .login import Login, Patience
from .route import Route
from .secrets import Secrets


class KeyUnknown(Exception):
    """The host is new: its key has to be accepted first."""

    def __init__(self, key: asyncssh.SSHKey) -> None:
        super().__init__()
        self.key = key


class KeyLocked(Exception):
    """The host would accept a key that has to be unlocked first."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path


@dataclass(slots=True)
class Attempt:
    """Everything that it takes; may be made several times."""

    host: Host
    route: Route
    keys: HostKeys
    prompts: Prompts
    secrets: Secrets
    bastion: asyncssh.SSHClientConnection | None
    name: str | None
    """The host's in the inventory; None when it is a bastion itself."""
    locked: list[Path] = field(default_factory=list)
    """Keys that the user did not unlock when asked."""

    async def make(self) -> tuple[asyncssh.SSHClientConnection, Login]:
        """Connect and log in. Raises HostError, KeyUnknown, KeyLocked."""
        host, route = self.host, self.route
        trust = self.keys.trust(route.key_name)
        login = Login(host, route, self.prompts, self.secrets, Patience())
        login.locked_keys = tuple(self.locked)
        try:
            return await _in_time(self._connect(trust, login), route, login), login
        except asyncssh.HostKeyNotVerifiable as error:
            if login.shown_key is None:
                raise failures.key_refused(host, route, str(error)) from error
            if not trust.host_keys:
                raise KeyUnknown(login.shown_key) from error
            raise failures.key_changed(self.name, route, trust, login.shown_key, self.keys.path) from error
        except (asyncssh.Error, OSError, ValueError) as error:
            if login.wanted_keys:
                raise KeyLocked(login.wanted_keys[0]) from error
            raise failures.explain(error, route, login) from error

    async def _connect(self, trust: Trust, login: Login) -> asyncssh.SSHClientConnection:
        host, route = self.host, self.route
        identities = await asyncio.to_thread(load, route.key_files, self.secrets.keys)
        login.unusable_keys = identities.rubbish
        for path in identities.closed:
            if path not in self.locked:
                raise KeyLocked(path)
        options: dict[str, Any] = {}
        if "HostKeyAlgorithms" not in route.settings:
            options["server_host_key_algs"] = trust.algorithms()
        if "Ciphers" not in route.settings:
            # Half the CPU time of asyncssh's and sshd's first choice.
            options["encryption_algs"] = "^aes128-gcm@openssh.com"
        if route.own_keys_only:
            options["agent_identities"] = [identity.public for identity in identities.usable]
        offers = [identity.offer for identity in identities.usable]
        return await asyncssh.connect(
            host.hostname,
            port=() if host.port is None else host.port,
            username=() if host.user is None else host.user,
            tunnel=self.bastion,
            client_factory=lambda: login,
            client_keys=offers or (None if route.own_keys_only else []),  # None turns ssh-agent off as well
            passphrase=login.passphrase,
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
