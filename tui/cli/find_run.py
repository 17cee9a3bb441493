"""The run that a word on the command line means, and live connections with the hosts that it is on."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..fleet import memory
from ..fleet.errors import HostError, UsageError
from ..fleet.fleet import Fleet
from ..fleet.members import Member, leftovers, members
from ..fleet.run_watch import NoSuchRun
from ..fleet.session import Session
from ..fleet.store import RunView
from .connection import CONNECT_SECONDS, known_hosts, open_fleet
from .hosts import inventory


@dataclass(frozen=True)
class Found:
    """A run and its hosts. `members` are by node rank, also those that cannot be asked."""

    fleet: Fleet
    run: RunView
    members: list[Member]
    search: _Search

    @property
    def id(self) -> str:
        """The run's name."""
        return self.run.id

    @property
    def sessions(self) -> list[Session]:
        """Connections with those of its hosts that can be asked; there is at least one."""
        return [member.session for member in self.members if member.session and not member.problem]

    @property
    def lead(self) -> Session:
        """The first of them: in most cases the one that has rank 0."""
        return self.sessions[0]

    @property
    def leftovers(self) -> list[Session]:
        """Connections with hosts that have left the run, and on which an older attempt still goes on."""
        return leftovers(self.run, self.fleet.sessions())

    async def everyone(self) -> list[Session]:
        """All hosts that have anything of the run, as far as is known; those not live cannot be asked.

        Waits until all hosts that there are have answered, or have failed to.
        """
        return await self.search.all_with(self.id)

    def current(self) -> RunView:
        """The run as it is now; as it was found, when it has been removed."""
        return self.fleet.store.find_run(self.id) or self.run


@asynccontextmanager
async def open_run(args: argparse.Namespace) -> AsyncIterator[Found]:
    """The run that `args.run` means. Hosts of it that cannot be reached are among its members all the same.

    Raises UsageError, NoSuchRun, HostError when no host that has it answers.
    """
    async with open_fleet(args, known_hosts([args.on] if args.on else ())) as fleet:
        search = _Search(fleet)
        try:
            name = await search.find(args.run)
            yield await search.whole(name)
        finally:
            search.close()


class _Search:
    """Connects to hosts and looks what they have."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._attempts: dict[asyncio.Future[None], Session] = {}
        self._failures: dict[str, HostError] = {}
        self._connect()

    async def find(self, word: str) -> str:
        """The name of the run of that name, or of the only one whose name begins so.

        Does not wait for slow hosts once the whole name was found. Raises UsageError when `word` is
        ambiguous, NoSuchRun when no host has it, HostError when it may be on one that does not answer.
        """
        if not word:  # every run begins so: a script whose variable is empty must not stop what it finds
            raise UsageError("The name of the run is empty.", "See: encamp status")
        while self._attempts:
            if any(word in session.view.runs for session in await self._next()):
                return word
        return self._by_prefix(word)

    async def whole(self, name: str) -> Found:
        """The run with its hosts, once each of them has answered or has failed to."""
        while True:
            run = self._fleet.store.find_run(name)
            if run is None:
                raise NoSuchRun(f"There is no run {name} any more.", "See: encamp status")
            if len(run.info.nodes) > 1:
                self._look_everywhere()
            there = members(run, self._fleet.sessions())
            if not self._attempts or all(member.problem is None for member in there):
                return Found(self._fleet, run, there, self)
            await self._next()

    async def all_with(self, name: str) -> list[Session]:
        """See `Found.everyone`: what was seen of a host before counts as well."""
        self._look_everywhere()
        while self._attempts:
            await self._next()
        return [session for session in self._fleet.sessions() if name in session.view.runs]

    def close(self) -> None:
        """Wait for nothing more."""
        for attempt in self._attempts:
            attempt.cancel()

    def _look_everywhere(self) -> None:
        """Connect to all hosts, also where the user said where to look: that was for finding the run."""
        for host in inventory().load():
            self._fleet.add(host)
        self._connect()

    def _connect(self) -> None:
        """Begin to wait for the hosts that have come to the fleet."""
        waited = {session.name for session in self._attempts.values()}
        for session in self._fleet.sessions():
            if not session.live and session.name not in waited and session.name not in self._failures:
                attempt = asyncio.ensure_future(session.connected(CONNECT_SECONDS, patient=False))
                self._attempts[attempt] = session

    async def _next(self) -> list[Session]:
        """Wait until at least one host has answered, or has failed to; returns those that have answered."""
        done, _ = await asyncio.wait(self._attempts, return_when=asyncio.FIRST_COMPLETED)
        answered = []
        for attempt in done:
            session = self._attempts.pop(attempt)
            error = attempt.exception()
            if isinstance(error, HostError):
                self._failures[session.name] = error
                memory.recall(self._fleet.store, session.name)
            elif error is not None:
                raise error
            else:
                answered.append(session)
        return answered

    def _by_prefix(self, word: str) -> str:
        found = [
            run
            for session in self._fleet.sessions()
            if session.live
            for run in session.view.runs.values()
            if run.id.startswith(word)
        ]
        newest = sorted(found, key=lambda run: run.info.started, reverse=True)
        names = list(dict.fromkeys(run.id for run in newest))
        if len(names) == 1:
            return names[0]
        if names:
            listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise UsageError(f"{word} can be {len(names)} runs: {listed}.", "Give more of its id.")
        for name, error in self._failures.items():
            for run in self._fleet.store.hosts[name].runs:
                if run.startswith(word):
                    raise HostError(
                        f"{run} is on {name}: {error.message}", error.hint, retryable=error.retryable
                    )
        if self._failures:
            reasons = "; ".join(f"{name}: {error.message}" for name, error in self._failures.items())
            raise HostError(
                f"No host that answers has a run {word}. Not all do: {reasons}",
                next(iter(self._failures.values())).hint,
                retryable=True,
            )
        raise NoSuchRun(f"There is no run {word}.", "See: encamp status")
