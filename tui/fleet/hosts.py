"""The hosts a user named, and the file that keeps them: hosts.toml, which people edit by hand as well."""

from __future__ import annotations

import dataclasses
import difflib
import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.exceptions import ParseError, TOMLKitError
from tomlkit.items import Table

from agent import wire

from .errors import UsageError
from .host_fields import CHECKS, HOST_PATH, KEYS, check_field, format_ports
from .target import ParsedTarget, format_address, parse_ssh_command

__all__ = [
    "HOST_PATH",
    "Host",
    "Inventory",
    "ParsedTarget",
    "check_field",
    "check_name",
    "default_name",
    "parse_ssh_command",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """One machine as the user named it. What is None or empty is left to ~/.ssh/config and SSH's defaults."""

    name: str
    """The user's word for it, unique in the inventory."""
    hostname: str
    """A DNS name, an IP address, or an alias of ~/.ssh/config."""
    port: int | None = None
    user: str | None = None
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    proxy_jump: str | None = None
    """As `-J` takes it; `none` overrules ~/.ssh/config."""
    home: str | None = None
    """Where the agent keeps everything on the host, when not in one of its usual places."""
    python: str | None = None
    """The interpreter that runs the agent on the host, when not the first that fits."""
    interface: str | None = None
    """The network interface for training with other hosts, when not the one that all of them reach best."""
    peer_address: str | None = None
    """The IP address by which the other hosts of a run reach it, when not that of the interface."""
    ports: tuple[int, int] | None = None
    """The first and the last port of it that the others reach, when not all of them are open."""

    @property
    def address(self) -> str:
        """`user@hostname:port` as far as it was given."""
        return format_address(self.hostname, self.port, self.user)

    @classmethod
    def from_target(cls, name: str, target: ParsedTarget) -> Host:
        """The host that a pasted text means, under a name."""
        return cls(
            name,
            target.hostname,
            target.port,
            target.user,
            target.identity_files,
            target.identities_only,
            target.proxy_jump,
        )


def check_name(name: str) -> str:
    """Return `name` if a host may be called so. Raises UsageError."""
    if not wire.HOST_NAME.match(name):
        raise UsageError(
            f"{name!r} cannot be the name of a host.",
            "A name has up to 63 letters, digits, '.', '_' or '-' and starts with a letter or digit.",
        )
    return name


def default_name(target: ParsedTarget, taken: Iterable[str]) -> str:
    """A name for a host that was given none: its host name, a port that tells it apart, a number last."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", target.hostname).strip("-._")[:48] or "host"
    candidates = [name]
    if target.port not in (None, 22):
        # Rented machines share addresses: there the port is what tells them apart.
        candidates = [f"{name}-{target.port}"]
    taken = set(taken)
    number = 2
    while candidates[-1] in taken:
        candidates.append(f"{candidates[0]}-{number}")
        number += 1
    return candidates[-1]


class Inventory:
    """hosts.toml. Comments, order and keys we do not know survive every change: see `_refuse_misspelt`.

    Each change reads the file anew under a lock, so encamps that write at once lose nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> list[Host]:
        """All hosts in the file's order; none without a file. Raises UsageError naming file and line."""
        return list(self._hosts(self._parse()).values())

    def get(self, name: str) -> Host:
        """The host called `name`. Raises UsageError that says which there are."""
        hosts = self._hosts(self._parse())
        if name not in hosts:
            raise _no_such_host(name, hosts)
        return hosts[name]

    def add(self, host: Host) -> Host:
        """Write a new host; raises UsageError when its name, or the very same host, is there already."""
        check_name(host.name)
        self._change(lambda document, hosts: self._insert(document, hosts, host))
        return host

    def add_target(self, target: ParsedTarget, name: str | None = None, **fields: Any) -> Host:
        """Write the host that a pasted text means, under `name` or a name made for it, and return it.

        `fields` are those of Host that a pasted text does not say.
        """
        added: list[Host] = []

        def insert(document: TOMLDocument, hosts: dict[str, Host]) -> None:
            host = Host.from_target(check_name(name) if name else default_name(target, hosts), target)
            host = dataclasses.replace(host, **fields)
            self._insert(document, hosts, host)
            added.append(host)

        self._change(insert)
        return added[0]

    def remove(self, name: str) -> Host:
        """Take a host out of the file and return it. Raises UsageError when there is none of that name."""
        removed: list[Host] = []

        def delete(document: TOMLDocument, hosts: dict[str, Host]) -> None:
            if name not in hosts:
                raise _no_such_host(name, hosts)
            removed.append(hosts[name])
            del _table(document)[name]

        self._change(delete)
        return removed[0]

    def rename(self, old: str, new: str) -> Host:
        """Give a host another name, keeping its place and comments. Raises UsageError."""
        check_name(new)
        with self._changing():
            document = self._parse()
            hosts = self._hosts(document)
            if old not in hosts:
                raise _no_such_host(old, hosts)
            if new in hosts:
                raise UsageError(f"There is a host {new} already.", "Take another name.")
            renamed = dataclasses.replace(hosts[old], name=new)
            # tomlkit cannot rename a key in its place, and a host has its headers each on a line of its own.
            text = _header(old).sub(rf'\1"{new}"' if "." in new else rf"\g<1>{new}", tomlkit.dumps(document))
            expected = {new if name == old else name: host for name, host in hosts.items()} | {new: renamed}
            if self._hosts(tomlkit.parse(text)) != expected:
                raise UsageError(
                    f"{self.path}: the host {old} is written in a form that encamp cannot rename.",
                    f"Rename it there by hand, as [hosts.{new}].",
                )
            self._write(text)
        return renamed

    def _insert(self, document: TOMLDocument, hosts: dict[str, Host], host: Host) -> None:
        if host.name in hosts:
            raise UsageError(
                f"There is a host {host.name} already: {hosts[host.name].address}.",
                f"Give another --name, or remove it with: encamp hosts remove {host.name}",
            )
        for other in hosts.values():
            if dataclasses.replace(other, name=host.name) == host:
                raise UsageError(f"This host is in the list already, as {other.name}.", "Use that name.")
        table = tomlkit.table()
        for field in dataclasses.fields(Host)[1:]:
            value = getattr(host, field.name)
            if field.name == "ports" and value:
                value = format_ports(value)
            if value not in (None, (), False):
                table[KEYS.get(field.name, field.name)] = list(value) if isinstance(value, tuple) else value
        _table(document)[host.name] = table

    def _parse(self) -> TOMLDocument:
        try:
            text = self.path.read_bytes().decode("utf-8")
        except FileNotFoundError:
            return tomlkit.document()
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{self.path} is not UTF-8 text: {error.reason} at byte {error.start}."
            ) from error
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror}.") from error
        try:
            return tomlkit.parse(text)
        except ParseError as error:
            message = re.sub(r" at line \d+ col \d+$", "", str(error))
            raise UsageError(
                f"{self.path}, line {error.line}: this is not TOML: {message}.",
                "Correct the file; encamp changes nothing in it until it can be read.",
            ) from error
        except TOMLKitError as error:
            raise UsageError(f"{self.path}: this is not TOML: {error}.", "Correct the file.") from error

    def _hosts(self, document: TOMLDocument) -> dict[str, Host]:
        hosts = document.get("hosts", {})
        if not isinstance(hosts, dict):
            raise UsageError(f"{self.path}: hosts is not a table.", "Write each host as [hosts.NAME].")
        return {name: self._host(name, table) for name, table in hosts.items()}

    def _host(self, name: str, table: object) -> Host:
        where = f"{self.path}: hosts.{name}"
        if not isinstance(table, dict):
            raise UsageError(f"{where} is not a table.", "Write each host as [hosts.NAME].")
        _refuse_misspelt(table, where)
        if "hostname" not in table:
            raise UsageError(f"{where} has no hostname.", 'Add one, for example hostname = "203.0.113.7".')
        values: dict[str, Any] = {"name": name}
        for field in CHECKS:
            key = KEYS.get(field, field)
            if key in table:
                values[field] = check_field(field, table[key], f"{where}.{key}")
        try:
            check_name(name)
        except UsageError as error:
            raise UsageError(f"{self.path}: {error.message}", error.hint) from error
        return Host(**values)

    def _change(self, change: Callable[[TOMLDocument, dict[str, Host]], None]) -> None:
        with self._changing():
            document = self._parse()
            change(document, self._hosts(document))
            self._hosts(document)  # nothing is written that could not be read again
            self._write(tomlkit.dumps(document))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock. It is a file beside the inventory, which is itself replaced by each change."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_name(self.path.name + ".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}.") from error

    def _write(self, text: str) -> None:
        target = self.path.resolve()  # people keep their configuration in a repository, with links to it
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # 0600
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _refuse_misspelt(table: Mapping[str, object], where: str) -> None:
    """Raise UsageError for a key that is nearly one of ours. Others may be anybody's, and stay."""
    known = [KEYS.get(field, field) for field in CHECKS]
    for key in table:
        if key in known:
            continue
        meant = {"peer_address": ["address"], "host": ["hostname"]}.get(key)
        meant = meant or difflib.get_close_matches(key.lower().replace("-", "_"), known, n=1, cutoff=0.75)
        if meant:
            raise UsageError(
                f"{where}.{key} is no key of a host: did you mean {meant[0]}?",
                f"A host may have {', '.join(known)}.",
            )


def _no_such_host(name: str, hosts: Iterable[str]) -> UsageError:
    known = ", ".join(hosts)
    return UsageError(
        f"There is no host {name}.",
        f"The hosts are: {known}" if known else 'Add it with: encamp hosts add "ssh -p PORT USER@ADDRESS"',
    )


def _table(document: TOMLDocument) -> Table:
    if "hosts" not in document:
        document["hosts"] = tomlkit.table(is_super_table=True)
    table: Table = document["hosts"]
    return table


def _header(name: str) -> re.Pattern[str]:
    """Matches the table headers of a host up to its name, which may be quoted."""
    word = re.escape(name)
    return re.compile(
        rf"""^([ \t]*\[[ \t]*hosts[ \t]*\.[ \t]*)(?:{word}|"{word}"|'{word}')(?=[ \t]*[.\]])""", re.MULTILINE
    )
