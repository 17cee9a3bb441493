"""The private keys that are offered to a host. One with a passphrase is opened when the host wants it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncssh


@dataclass(frozen=True, slots=True)
class Identity:
    """One key to offer."""

    offer: str | asyncssh.SSHKey | tuple[asyncssh.SSHKey, str]
    """In a form that asyncssh takes: the path, so that it finds the certificate too, or the opened key."""
    public: bytes
    """By which ssh-agent knows the key."""


@dataclass(frozen=True, slots=True)
class Identities:
    """What a list of key files comes to."""

    usable: tuple[Identity, ...]
    closed: tuple[Path, ...]
    """Keys to be opened before it is known what to offer: an old format, the public half missing."""
    rubbish: tuple[Path, ...]
    """Files that hold no key that we can use."""


def load(paths: Sequence[Path], opened: Mapping[Path, asyncssh.SSHKey]) -> Identities:
    """Look at the keys in `paths`; those in `opened` need no passphrase. Reads files: for a thread."""
    usable: list[Identity] = []
    closed: list[Path] = []
    rubbish: list[Path] = []
    for path in paths:
        key = opened.get(path)
        if key is not None:
            certificate = f"{path}-cert.pub"
            usable.append(
                Identity((key, certificate) if Path(certificate).exists() else key, key.public_data)
            )
            continue
        try:
            public = _public(path)
        except (OSError, ValueError):
            rubbish.append(path)
            continue
        if public is None:
            closed.append(path)
        else:
            usable.append(Identity(str(path), public))
    return Identities(tuple(usable), tuple(closed), tuple(rubbish))


def _public(path: Path) -> bytes | None:
    """The public half, or None when it needs the passphrase. Raises OSError, ValueError when it is no key."""
    try:
        return asyncssh.read_private_key(path).public_data
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
