"""Where a host is and who we are there, once ~/.ssh/config has had its say.

Reading the configuration may run commands (`Match exec`), so this belongs in a thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import asyncssh

from ..errors import HostError
from ..hosts import Host
from ..target import format_address, split_destination, split_jump
from .keys import key_name

DEFAULT_KEYS = ("id_ed25519_sk", "id_ecdsa_sk", "id_ed25519", "id_ecdsa", "id_rsa")
"""Keys in ~/.ssh that are tried when none is named, in this order."""


@dataclass(frozen=True, slots=True)
class Route:
    """How to reach one host."""

    hostname: str
    port: int
    user: str
    key_name: str
    """Under what name known_hosts has it."""
    bastion: Host | None
    """The host to go through, itself perhaps reached through another."""
    proxied: bool
    """Whether a ProxyCommand makes the connection."""
    key_files: tuple[Path, ...]
    """Private keys to offer, those that exist."""
    missing: tuple[str, ...]
    """Key files that were named for this host and are not there."""
    own_keys_only: bool
    """IdentitiesOnly: ssh-agent may only offer keys that are among `key_files`."""
    known_hosts: tuple[Path, ...]
    """Files of known hosts besides our own."""
    settings: frozenset[str]
    """Names of the options that the configuration sets for this host."""

    @property
    def address(self) -> str:
        """`user@host:port`, for messages."""
        return format_address(self.hostname, None if self.port == 22 else self.port, self.user)

    @property
    def endpoint(self) -> str:
        """`host:port`, or `host` when the port is 22, for messages."""
        return format_address(self.hostname, None if self.port == 22 else self.port)


def route_of(host: Host) -> Route:
    """Work out the way to `host`. Raises HostError when the ssh configuration cannot be used."""
    try:
        options = asyncssh.SSHClientConnectionOptions(
            config=(),
            host=host.hostname,
            port=() if host.port is None else host.port,
            username=() if host.user is None else host.user,
            tunnel=() if host.proxy_jump is None else None,
            client_keys=None,
            x509_trusted_certs=None,
        )
    except (ValueError, OSError) as error:
        raise HostError(
            f"The ssh configuration for {host.hostname} cannot be used: {error}.", "Correct ~/.ssh/config."
        ) from error
    jump = host.proxy_jump if host.proxy_jump is not None else cast("str | None", options.tunnel or None)
    alias = options.host_key_alias
    named = host.identity_files or tuple(cast("list[str]", options.config.get("IdentityFile", [])))
    present, missing = _existing(named)
    if not present:
        present, _ = _existing([f"~/.ssh/{name}" for name in DEFAULT_KEYS])
    return Route(
        hostname=options.host,
        port=options.port,
        user=options.username,
        key_name=alias.lower() if alias else key_name(options.host, options.port),
        bastion=_bastion(jump, host),
        proxied=bool(options.proxy_command),
        key_files=present,
        missing=missing if host.identity_files else (),
        own_keys_only=host.identities_only or bool(options.config.get("IdentitiesOnly")),
        known_hosts=_known_hosts(options.config),
        settings=frozenset(name for name in ("HostKeyAlgorithms", "Ciphers") if options.config.get(name)),
    )


def _bastion(jump: str | None, host: Host) -> Host | None:
    """The last hop before the host, which is in turn reached through the hops before it."""
    if jump is None or jump.lower() == "none":
        return None
    *before, last = split_jump(jump)
    user, hostname, port = split_destination(last)
    if not before and hostname.lower() == host.hostname.lower() and port in (None, host.port):
        return None  # `Host *` with a ProxyJump holds for the bastion as well: ssh skips it there, too
    return Host(hostname, hostname, port, user, proxy_jump=",".join(before) or None)


def _existing(names: list[str] | tuple[str, ...]) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    paths = {name: Path(name).expanduser() for name in names}
    missing = tuple(name for name, path in paths.items() if not os.access(path, os.R_OK))
    return tuple(path for name, path in paths.items() if name not in missing), missing


def _known_hosts(config: object) -> tuple[Path, ...]:
    get = cast(asyncssh.config.SSHConfig, config).get
    users = cast("list[str]", get("UserKnownHostsFile", ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"]))
    system = cast(
        "list[str]", get("GlobalKnownHostsFile", ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"])
    )
    return tuple(Path(name).expanduser() for name in (*users, *system) if name.lower() != "none")
