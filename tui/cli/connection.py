"""What commands need to reach hosts: the inventory, the sessions, and the run that a word means."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from ..fleet import memory
from ..fleet.errors import HostError, UsageError
from ..fleet.fleet import Fleet
from ..fleet.hosts import Host
from ..fleet.run_watch import NoSuchRun
from ..fleet.session import Session
from ..fleet.store import RunView, Store
from .hosts import inventory
from .prompts import prompts

CONNECT_SECONDS = 180.0
"""How long the first connection to a host may take, the user's answers to its questions included."""


def known_hosts(names: Iterable[str] = ()) -> list[Host]:
    """The hosts of these names, or all. Raises UsageError for an unknown one, and when there are none."""
    file = inventory()
    hosts = [file.get(name) for name in dict.fromkeys(names)] or file.load()
    if not hosts:
        raise UsageError(
            "There are no hosts yet.", 'Add one: encamp hosts add "ssh -p 20544 root@203.0.113.7"'
        )
    return hosts


def quiet_logging() -> None:
    """Keep what sessions log off the terminal: what the user is to know is said by the command or the app."""
    logging.getLogger().addHandler(logging.NullHandler())


@asynccontextmanager
async def open_fleet(args: argparse.Namespace, hosts: Iterable[Host]) -> AsyncIterator[Fleet]:
    """Sessions with `hosts` for the body, which connect in the background."""
    quiet_logging()
    fleet = Fleet(inventory(), Store(), prompts(accept_new_host_key=args.accept_new_host_key))
    try:
        for host in hosts:
            fleet.add(host)
        yield fleet
    finally:
        for session in fleet.sessions():
            if session.view.ready:
                memory.remember(session.view)
        await fleet.close()


@asynccontextmanager
async def open_host(args: argparse.Namespace, name: str) -> AsyncIterator[Session]:
    """A live session with one host. Raises HostError when the first attempt to connect fails."""
    async with open_fleet(args, known_hosts([name])) as fleet:
        session = fleet.session(name)
        await session.connected(CONNECT_SECONDS, patient=False)
        yield session


@asynccontextmanager
async def open_run(args: argparse.Namespace) -> AsyncIterator[tuple[Session, RunView]]:
    """The run that `args.run` means and a live session with its host."""
    async with open_fleet(args, known_hosts([args.on] if args.on else ())) as fleet:
        yield await find_run(fleet, args.run)


async def find_run(fleet: Fleet, word: str) -> tuple[Session, RunView]:
    """The run of that id, or the only one whose id begins so, on the hosts of `fleet`.

    Does not wait for slow hosts once the whole id was found. Raises UsageError when `word` is ambiguous,
    NoSuchRun when no host has it, HostError when it may be on one that does not answer.
    """
    if not word:  # every run begins so: a script whose variable is empty must not stop what it finds
        raise UsageError("The name of the run is empty.", "See: encamp status")
    attempts = {
        asyncio.ensure_future(session.connected(CONNECT_SECONDS, patient=False)): session
        for session in fleet.sessions()
    }
    failures: dict[str, HostError] = {}
    pending = set(attempts)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for attempt in done:
                session = attempts[attempt]
                error = attempt.exception()
                if isinstance(error, HostError):
                    failures[session.name] = error
                elif error is not None:
                    raise error
                elif word in session.view.runs:
                    return session, session.view.runs[word]
    finally:
        for attempt in pending:
            attempt.cancel()
    return _by_prefix(fleet, word, failures)


def _by_prefix(fleet: Fleet, word: str, failures: dict[str, HostError]) -> tuple[Session, RunView]:
    found = [
        (session, run)
        for session in fleet.sessions()
        if session.live
        for run in session.view.runs.values()
        if run.id.startswith(word)
    ]
    if len({run.id for _, run in found}) == 1:
        return found[0]  # more than one host has it when two names stand for one machine
    if found:
        newest = sorted(found, key=lambda pair: pair[1].info.started, reverse=True)
        names = ", ".join(run.id for _, run in newest[:5]) + (", ..." if len(newest) > 5 else "")
        raise UsageError(f"{word} can be {len(found)} runs: {names}.", "Give more of its id.")
    for name, error in failures.items():
        memory.recall(fleet.store, name)
        for run in fleet.store.hosts[name].runs:
            if run.startswith(word):
                raise HostError(f"{run} is on {name}: {error.message}", error.hint, retryable=error.retryable)
    if failures:
        reasons = "; ".join(f"{name}: {error.message}" for name, error in failures.items())
        raise HostError(
            f"No host that answers has a run {word}. Not all do: {reasons}",
            next(iter(failures.values())).hint,
            retryable=True,
        )
    raise NoSuchRun(f"There is no run {word}.", "See: encamp status")
