"""Gets the agent running on a host that offers nothing but a login, and hands over its stdin and stdout.

One command does it; `installer` has its text. On stdout comes first what the login prints by itself, which is
discarded, and then a random nonce with the answer:

    NONCE            the agent's relay runs, all that follows is JSON lines
    NONCE:need       the agent is not here: a receiver in Python waits for it on stdin
    NONCE:none ...   no Python that can run it
    NONCE:fail {...} the receiver could not store it
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agent.bundle import Bundle

from .channel import Stream
from .errors import HostError, HostUnfit, Unreachable
from .hosts import Host
from .installer import TOO_OLD, receiver, shell_command
from .patience import within
from .sanitize import printable

START_SECONDS = 30.0
"""How long a login may take until our command runs, its profile and all."""

UPLOAD_SECONDS = 120.0
"""How long the agent may take to get there and start, over a slow line."""

NOISE_LIMIT = 1024 * 1024
"""Bytes that a login may print before our command runs."""

NOISE_TAIL = 2048

EXIT_HOME, EXIT_START, EXIT_SILENT, EXIT_ENDED = 91, 92, 93, 94
"""Exit codes of the agent's relay: see agent/connect.py. It explains the first three on stderr."""


class Command(Stream, Protocol):
    """A command that runs on a host."""

    @property
    def exit_status(self) -> int | None:
        """Its exit code, or None while there is none."""
        ...

    async def wait(self, seconds: float) -> None:
        """Wait for its end, at most so long."""
        ...

    def stderr_tail(self) -> bytes:
        """The last of what it wrote to stderr."""
        ...


class Connection(Protocol):
    """A login that can start commands."""

    async def open_exec(self, command: str) -> Command:
        """Start `command` under the login shell. Raises HostError."""
        ...


@dataclass(frozen=True, slots=True)
class Started:
    """The relay to the agent: its stream, and the bytes of it that were read already."""

    command: Command
    head: bytes


async def start_agent(
    connection: Connection,
    host: Host,
    bundle: Bundle,
    *,
    keep: bool = False,
    on_install: Callable[[], None] = lambda: None,
) -> Started:
    """Start the relay to the host's agent, and install the agent first where it is missing.

    `keep` accepts a running agent of another build. `on_install` is called before an upload. Raises
    HostUnfit, Unreachable.
    """
    try:
        return await _start(connection, host, bundle, keep, on_install, fresh=False)
    except _Broken:
        # What is there does not run: a damaged file, a Python that fails. Try each Python, and upload anew.
        try:
            return await _start(connection, host, bundle, keep, on_install, fresh=True)
        except _Broken as error:
            raise error.reason from error


async def why_ended(command: Command, host: Host) -> HostError:
    """Why the relay's stream ended: what it said, or that the connection was lost."""
    await command.wait(2.0)
    if command.exit_status in (EXIT_HOME, EXIT_START, EXIT_SILENT):
        said = _last_line(command.stderr_tail()).removeprefix("encamp: ")
        return HostUnfit(f"The agent on {host.name} does not start: {said}.", _home_hint(host))
    if command.exit_status == EXIT_ENDED:
        return Unreachable(f"The agent on {host.name} was ended or replaced.")
    if command.exit_status:
        said = _last_line(command.stderr_tail())
        return Unreachable(
            f"The agent's relay on {host.name} ended with exit code {command.exit_status}"
            + (f": {said}" if said else ".")
        )
    return Unreachable(f"The connection to {host.name} was lost.")


class _Broken(Exception):
    """Our command ended before the relay said a word."""

    def __init__(self, reason: HostError) -> None:
        super().__init__()
        self.reason = reason


async def _start(
    connection: Connection,
    host: Host,
    bundle: Bundle,
    keep: bool,
    on_install: Callable[[], None],
    *,
    fresh: bool,
) -> Started:
    nonce = secrets.token_hex(16)
    command = await connection.open_exec(shell_command(host, bundle.sha256, nonce, keep=keep, fresh=fresh))
    opening = _Opening(command, host, nonce.encode("ascii"))
    try:
        word = await opening.answer(START_SECONDS)
        if word.startswith(b":need"):
            on_install()
            await command.write(receiver(bundle, keep=keep))
            await command.write(bundle.data)
            word = await opening.answer(UPLOAD_SECONDS)
        if word:
            raise _refusal(word, host, bundle)
    except BaseException:
        await command.close()
        raise
    return Started(command, opening.rest)


class _Opening:
    """What comes out of our command before the agent speaks."""

    def __init__(self, command: Command, host: Host, nonce: bytes) -> None:
        self._command = command
        self._host = host
        self._nonce = nonce
        self._discarded = 0
        self.rest = b""
        """What was read after the answer."""

    async def answer(self, seconds: float) -> bytes:
        """What follows the next nonce on its line; empty when the relay runs. Raises HostError, _Broken."""
        try:
            return await within(seconds, self._answer())
        except TimeoutError:
            said = _last_line(self._command.stderr_tail()) or _last_line(self.rest)
            raise HostUnfit(
                f"The login on {self._host.name} did not get to our command within {seconds:.0f} s"
                + (f"; the last that it said: {said}." if said else " and said nothing."),
                "Log in by hand and look what its profile (.bashrc, .profile) waits for.",
            ) from None

    async def _answer(self) -> bytes:
        while True:
            before, found, after = self.rest.partition(self._nonce)
            if found and b"\n" in after:
                word, _, self.rest = after.partition(b"\n")
                return word
            if not found and len(before) > NOISE_TAIL:
                self._discarded += len(before) - NOISE_TAIL
                self.rest = before[-NOISE_TAIL:]
            if self._discarded > NOISE_LIMIT or len(after) > NOISE_LIMIT:
                raise HostUnfit(
                    f"The login on {self._host.name} prints without end instead of running our command: "
                    f"{_last_line(self.rest)}",
                    "Log in by hand and silence its profile (.bashrc, .profile).",
                )
            data = await self._command.read(65536)
            if not data:
                raise await self._ended()
            self.rest += data

    async def _ended(self) -> Exception:
        command, name = self._command, self._host.name
        await command.wait(2.0)
        status = command.exit_status
        if status is None:
            return Unreachable(f"The connection to {name} was lost while the agent was starting.")
        said = _last_line(command.stderr_tail()) or _last_line(self.rest)
        if re.search(r"\b(pty|tty|terminal)\b", said, re.IGNORECASE):
            return HostUnfit(
                f"{name} wants a terminal and runs no commands without: {said}",
                "On RunPod take the command under 'SSH over exposed TCP', not the one with ssh.runpod.io. "
                "Elsewhere keep the login's profile from starting tmux when it is not interactive.",
            )
        return _Broken(
            HostUnfit(
                f"The login on {name} ended with exit code {status} before the agent started"
                + (f"; it said: {said}" if said else "."),
                "Check what this runs by hand: ssh HOST sh -c true",
            )
        )


def _refusal(word: bytes, host: Host, bundle: Bundle) -> HostError:
    """What the script or the receiver could not do."""
    kind, _, rest = word.decode("utf-8", "replace").partition(" ")
    if kind == ":none":
        tried = [entry.rpartition("=") for entry in rest.split()]
        old = [path for path, _, code in tried if code == str(TOO_OLD)]
        other = [path for path, _, code in tried if code != str(TOO_OLD)]
        details = [f"{_join(old)} {'is' if len(old) == 1 else 'are'} older"] if old else []
        details += [f"{_join(other)} {'does' if len(other) == 1 else 'do'} not run"] if other else []
        return HostUnfit(
            f"{host.name} has no Python 3.8 or newer" + (f": {', '.join(details)}." if details else "."),
            f'Install python3 there, or give python = "/path" under [hosts.{host.name}] in hosts.toml.',
        )
    try:
        fields = json.loads(rest)
        errors = [tuple(map(str, entry)) for entry in fields.get("errors", ())]
    except (ValueError, AttributeError, TypeError):
        return HostUnfit(f"The installation on {host.name} failed: {printable(rest[:200])}")
    if not errors:
        return Unreachable(f"The agent arrived damaged on {host.name}.")
    full = [entry for entry in errors if entry[1] in ("ENOSPC", "EDQUOT")]
    if full:
        return HostUnfit(
            f"The disk of {host.name} is full: {printable(full[0][0])} has no room for the agent "
            f"({len(bundle.data) // 1024} KiB).",
            f"Make room there, or {_home_hint(host)[:1].lower()}{_home_hint(host)[1:]}",
        )
    places = "; ".join(f"{printable(place)}: {printable(text)}" for place, _, text in errors)
    return HostUnfit(f"There is no place for the agent on {host.name}: {places}.", _home_hint(host))


def _home_hint(host: Host) -> str:
    return f'Name a folder of yours there as home = "/path" under [hosts.{host.name}] in hosts.toml.'


def _join(paths: list[str]) -> str:
    return printable(", ".join(paths)[:200])


def _last_line(data: bytes) -> str:
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines()]
    return printable(next((line for line in reversed(lines) if line), ""))[:300]
