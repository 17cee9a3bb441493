"""The private keys that are offered to a host. One with a passphrase is opened when the host wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncssh

Ask = Callable[[Path, bytes], Awaitable["str | None"]]
"""Gets the passphrase of the key at a path, whose file holds these bytes; None when it stays locked."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One key to offer."""

    offer: str | asyncssh.SSHKey
    """In a form that asyncssh takes: the path, so that it finds the certificate too, or the opened key."""
    public: bytes
    """By which ssh-agent knows the key."""


async def load(paths: Sequence[Path], ask: Ask) -> tuple[list[Identity], list[Path]]:
    """The keys in `paths` that can be offered, and the files that hold no key we can use."""
    identities: list[Identity] = []
    unusable: list[Path] = []
    for path in paths:
        try:
            data = await asyncio.to_thread(path.read_bytes)
            public = await asyncio.to_thread(_public, path, data)
            if public is not None:
                identities.append(Identity(str(path), public))
                continue
            # An old format without the public half beside it: to know what to offer, it has to be opened.
            passphrase = await ask(path, data)
            if passphrase is not None:
                key = await asyncio.to_thread(asyncssh.import_private_key, data, passphrase)
                identities.append(Identity(key, key.public_data))
        except (OSError, ValueError):
            unusable.append(path)
    return identities, unusable


def _public(path: Path, data: bytes) -> bytes | None:
    """The public half, or None when it can only be had with the passphrase. Raises ValueError: no key."""
    try:
        return asyncssh.import_private_key(data).public_data
    except asyncssh.KeyEncryptionError:
        pass
    except asyncssh.KeyImportError as error:
        if not str(error).startswith("Passphrase"):
            raise
    for source in (Path(f"{path}.pub"), path):
        try:
            return asyncssh.read_public_key(source).public_data
        except (OSError, ValueError):
            continue
    return None
