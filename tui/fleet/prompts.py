"""What a connection may have to ask a person, and the answer when nobody is there."""

# ruff: noqa: ARG002 (the signatures are those of the protocol)
from __future__ import annotations

from typing import Protocol

from .hosts import Host


class Prompts(Protocol):
    """Whoever can ask the user: the app with a dialog, a command on the terminal.

    An answer is kept in memory for reconnects of this process at most, and never written anywhere.
    """

    async def accept_host_key(self, host: Host, key_type: str, fingerprint: str) -> bool:
        """Whether this key of a host never seen before is the right one. `fingerprint` is `SHA256:...`."""
        ...

    async def password(self, host: Host, prompt: str) -> str | None:
        """The answer to `prompt` (the host's own words, unfiltered), or None to give up."""
        ...

    async def passphrase(self, host: Host, path: str) -> str | None:
        """The passphrase of the private key at `path`, or None to go on without it."""
        ...


class NoPrompts:
    """Nobody is there: no secrets, and new host keys only when that was asked for beforehand."""

    def __init__(self, *, accept_new_host_key: bool = False) -> None:
        self.accept_new_host_key = accept_new_host_key

    async def accept_host_key(self, host: Host, key_type: str, fingerprint: str) -> bool:
        """Accept if that was asked for."""
        return self.accept_new_host_key

    async def password(self, host: Host, prompt: str) -> str | None:
        """There is none."""
        return None

    async def passphrase(self, host: Host, path: str) -> str | None:
        """There is none."""
        return None
