"""Virtual environments on hosts: one question when it is there already, else a build with its output live.

A build belongs to the host. It goes on when the connection breaks, or when nobody waits for it any more; who
asks again follows it from where it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Optional

from agent import wire

from .agent_command import start_command
from .errors import EncampError, HostError, RequestRefused, Unreachable
from .parallel import everywhere
from .runs import LAUNCH_SECONDS, RECONNECT_SECONDS, read_answer, request
from .sanitize import printable
from .session import Session

READ_BYTES = 64 * 1024

MAX_SHOWN = 1000
"""Characters of a line of output that are shown."""

MAX_PENDING = 16 * 1024
"""Characters of output without a line's end that are kept; older ones are shown as a line."""

MAX_LOSSES = 5
"""So often in a row the connection may be lost without any output in between."""

END_SECONDS = 2.0
"""How long the command may take to say how it ended, when its output has."""


@dataclass(frozen=True)
class Environment:
    """An environment that is complete. `base` is the interpreter that it is made from."""

    python: str
    base: str
    torch: Optional[str] = None  # noqa: UP045 (read at run time by wire.from_json, as all of these)
    fresh: bool = False
    """It was not there when it was asked for."""
    packages: dict[str, str] = field(default_factory=dict)
    """Name for importing -> version, of those that strategies need."""


@dataclass(frozen=True)
class Listed:
    """An environment of ours on a host. `used` and `built` are its wall clock's."""

    python: str
    state: str
    """`complete`, or `not complete`: it is being built, or is what is left of a build that was killed."""
    used: float = 0.0
    base: Optional[str] = None  # noqa: UP045
    packages: Optional[tuple[str, ...]] = None  # noqa: UP045
    """Those that were asked for."""
    recipe: Optional[str] = None  # noqa: UP045
    built: Optional[float] = None  # noqa: UP045
    seconds: Optional[float] = None  # noqa: UP045
    has: dict[str, str] = field(default_factory=dict)
    """Name for importing -> version, of those that strategies need."""


@dataclass(frozen=True)
class _List:
    environments: tuple[Listed, ...]


@dataclass(frozen=True)
class _Answer:
    """Of `env_has`: without `python` it is not there."""

    python: Optional[str] = None  # noqa: UP045
    base: str = ""
    torch: Optional[str] = None  # noqa: UP045
    packages: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Refusal:
    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True)
class _Told:
    """A line of the command."""

    output: str = ""
    offset: int = 0
    joined: bool = False
    built: Optional[Environment] = None  # noqa: UP045
    failed: Optional[_Refusal] = None  # noqa: UP045


async def build(
    session: Session, python: str, setup: wire.EnvSetup, on_output: Callable[[str], None], *, cwd: str = ""
) -> Environment:
    """Have the environment on the host. `python` and `cwd` are as in a LaunchSpec.

    `on_output` is called with each line of a build, fit for a terminal. Cancelled, it leaves the build to
    the host. Raises RequestRefused (`no-env`, `no-python`, `no-space`, `bad-spec`), HostError.
    """
    asked: dict[str, Any] = {"python": python, "setup": wire.to_json(setup), "cwd": cwd}
    found = await _look(session, asked)
    if found is not None:
        return found
    following = _Following(session, asked, on_output)
    losses, reached = 0, 0
    while True:
        try:
            return await following.run()
        except Unreachable:
            losses = losses + 1 if following.offset == reached else 1
            reached = following.offset
            if losses >= MAX_LOSSES:
                raise
            await session.connected(RECONNECT_SECONDS)


async def build_all(
    sessions: Iterable[Session],
    python: str,
    setup: wire.EnvSetup,
    on_output: Callable[[str, str], None],
    *,
    cwd: str = "",
) -> dict[str, Environment]:
    """`build` on all hosts at once; `on_output` is told the host's name too. Raises HostsFailed."""

    async def build_one(session: Session) -> Environment:
        return await build(session, python, setup, lambda line: on_output(session.name, line), cwd=cwd)

    return (await everywhere(sessions, build_one)).results()


async def listed(session: Session) -> tuple[Listed, ...]:
    """The environments of ours on a host, the newest first. Raises RequestRefused, HostError."""
    return read_answer(_List, await request(session, "env_list", {}, timeout=LAUNCH_SECONDS)).environments


async def _look(session: Session, asked: dict[str, Any]) -> Environment | None:
    """The environment if it is there."""
    try:
        answer = await request(session, "env_has", asked, timeout=LAUNCH_SECONDS)
    except RequestRefused as error:
        if error.code != "unknown-method":
            raise
        raise EncampError(
            f"The agent on {session.name} is too old to build environments.",
            "Another encamp keeps it there: use the same version wherever you look at this host from.",
        ) from error
    found = read_answer(_Answer, answer)
    return (
        None
        if found.python is None
        else Environment(found.python, found.base, found.torch, packages=found.packages)
    )


class _Following:
    """Follows one build, across connections. `offset` is how much of its output has come."""

    def __init__(self, session: Session, asked: dict[str, Any], on_output: Callable[[str], None]) -> None:
        self.offset = 0
        self._session = session
        self._asked = asked
        self._show = on_output
        self._pending = ""

    async def run(self) -> Environment:
        """Follow it to its end over one connection. Raises Unreachable when that breaks."""
        channel, data = await start_command(self._session, "build-env")
        try:
            asked = {**self._asked, "offset": self.offset}
            await channel.write(json.dumps(asked).encode("ascii") + b"\n")
            while True:
                *lines, data = data.split(b"\n")
                for line in lines:
                    built = self._take(line)
                    if built is not None:
                        return built
                more = b"" if len(data) > wire.MAX_LINE else await channel.read(READ_BYTES)
                if not more:
                    break
                data += more
            await channel.wait(END_SECONDS)
            if channel.exit_status is None and not data:
                raise Unreachable(f"The connection to {self._session.name} was lost.")
            said = printable(channel.stderr_tail().decode("utf-8", "replace"))[-300:]
            raise HostError(
                f"The agent on {self._session.name} does not say how the build goes.", said or "Try again."
            )
        finally:
            await channel.close()

    def _take(self, line: bytes) -> Environment | None:
        try:
            told = wire.from_json(_Told, json.loads(line), "build")
        except ValueError as error:  # WireError is one
            raise HostError(
                f"The agent on {self._session.name} answers in a way that makes no sense."
            ) from error
        if told.joined and not self.offset:
            self._show("It is being built already; this is how that goes.")
        if told.output:
            self._pending += told.output
            *ended, self._pending = self._pending.split("\n")
            for text in ended:
                self._line(text)
            if len(self._pending) > MAX_PENDING:
                self._line(self._pending)
                self._pending = ""
            self.offset = max(0, told.offset)
        if told.failed is not None:
            refusal = told.failed
            raise RequestRefused(refusal.code, printable(refusal.message), printable(refusal.hint))
        return told.built

    def _line(self, text: str) -> None:
        """Show a line; of one that was drawn over, what it came to."""
        shown = printable(text.rstrip("\r").rpartition("\r")[2])[:MAX_SHOWN].rstrip()
        if shown:
            self._show(shown)
