"""Which host key belongs to which host: trust on first use, and never a second time by itself.

Keys that the user accepts go into a known_hosts file of our own; the user's and the system's files are read
and obeyed (revoked keys and certificate authorities too) but never written.
"""

from __future__ import annotations

import fcntl
import functools
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncssh
from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs

DEFAULT_PORT = 22


def key_name(hostname: str, port: int) -> str:
    """The host as known_hosts writes it: `host`, or `[host]:port` when the port is not 22."""
    hostname = hostname.lower()
    return hostname if port == DEFAULT_PORT else f"[{hostname}]:{port}"


def fingerprint(key: asyncssh.SSHKey) -> str:
    """`SHA256:...`, as ssh and the providers' pages show it."""
    return key.get_fingerprint("sha256")


@dataclass(frozen=True, slots=True)
class Trust:
    """What the files say about one host. `source` is the file that names its keys."""

    host_keys: tuple[asyncssh.SSHKey, ...]
    authorities: tuple[asyncssh.SSHKey, ...]
    revoked: tuple[asyncssh.SSHKey, ...]
    source: Path | None

    def for_asyncssh(self) -> tuple[Sequence[asyncssh.SSHKey], ...]:
        """In the shape that asyncssh takes as known hosts."""
        return self.host_keys, self.authorities, self.revoked

    def algorithms(self) -> list[str]:
        """The types of keys to ask the host for, the known ones first.

        The others follow, so that a host that has only another one now can be told so by its fingerprint.
        Certificates are asked for only where an authority is trusted: else they would hide the plain key,
        which the user can be asked about.
        """
        wanted = [algorithm for key in self.host_keys for algorithm in key.sig_algorithms]
        if self.authorities:
            wanted = [*get_default_certificate_algs(), *wanted]
        return [name.decode("ascii") for name in dict.fromkeys((*wanted, *get_default_public_key_algs()))]


class HostKeys:
    """The accepted keys in `path`, together with those of the files `others`."""

    def __init__(self, path: Path, others: Sequence[Path] = ()) -> None:
        self.path = path
        self.others = tuple(others)

    def trust(self, name: str) -> Trust:
        """What is known of the host that known_hosts calls `name`."""
        host_keys: list[asyncssh.SSHKey] = []
        authorities: list[asyncssh.SSHKey] = []
        revoked: list[asyncssh.SSHKey] = []
        source: Path | None = None
        for path in (self.path, *self.others):
            known = _known(path)
            keys, cas, bad, *_ = known.match(name, "", None)
            if keys and source is None:
                source = path
            host_keys += keys
            authorities += cas
            revoked += bad
            if name.startswith("["):
                # As in ssh, an authority or a revocation for a host holds on all of its ports. A plain key
                # does not: rented machines share one address, and each port is another machine.
                _, cas, bad, *_ = known.match(name[1 : name.rindex("]")], "", None)
                authorities += cas
                revoked += bad
        return Trust(tuple(host_keys), tuple(authorities), tuple(revoked), source)

    def accept(self, name: str, key: asyncssh.SSHKey) -> None:
        """Remember that `key` is the key of `name`. Raises OSError."""
        with self._locked():
            lines = _read(self.path).splitlines()
            lines.append(f"{name} {key.export_public_key().decode('ascii').strip()}")
            self._write(lines)

    def forget(self, name: str) -> int:
        """Drop the accepted keys of `name` and return how many there were. Raises OSError."""
        with self._locked():
            lines = _read(self.path).splitlines()
            kept = [line for line in lines if line.split(" ", 1)[0] != name]
            if len(kept) != len(lines):
                self._write(kept)
            return len(lines) - len(kept)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_name(self.path.name + ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, lines: Sequence[str]) -> None:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)  # 0600
        try:
            with os.fdopen(descriptor, "w", encoding="ascii", errors="surrogateescape") as file:
                file.writelines(line + "\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self.path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _known(path: Path) -> asyncssh.SSHKnownHosts:
    try:
        status = path.stat()
    except OSError:
        return asyncssh.SSHKnownHosts()
    return _parse(path, status.st_ino, status.st_mtime_ns, status.st_size)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("ascii", "surrogateescape")
    except OSError:
        return ""  # a file that is not there, or is somebody else's, makes nobody trusted


@functools.lru_cache(maxsize=16)
def _parse(path: Path, *_version: int) -> asyncssh.SSHKnownHosts:
    """Take in a known_hosts file line by line: one that is broken must not hide the others."""
    known = asyncssh.SSHKnownHosts()
    for line in _read(path).splitlines():
        try:
            known.load(line)
        except ValueError:
            continue
    return known
