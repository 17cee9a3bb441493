"""Which logs `encamp logs` means, and on which of a run's hosts each of them is."""

from __future__ import annotations

import argparse
import re
from typing import Any

from ..fleet.errors import EncampError, HostError, UsageError
from ..fleet.log_stream import LogStream
from ..fleet.parallel import everywhere
from ..fleet.session import Session
from . import output
from .find_run import Found

Places = dict[int, Session | EncampError]
"""Where each rank's log is, or why its host cannot be asked."""

Silent = dict[str, EncampError]
"""Hosts that cannot be asked, and why."""

RANK = re.compile(r"rank(0|[1-9][0-9]{0,4})\Z")


async def choose(args: argparse.Namespace, found: Found, attempt: int) -> tuple[list[LogStream], list[str]]:
    """The streams, and the names of hosts whose ranks are left out as they cannot be asked.

    Raises UsageError for what there is not, and why its host cannot be asked when only that was wanted.
    """
    run = found.run
    if not 1 <= attempt <= run.attempt:
        raise UsageError(f"There is no attempt {attempt} of {run.id}.", f"The newest is {run.attempt}.")
    outages: dict[str, Outages] = {}

    def stream(session: Session, name: str) -> LogStream:
        listener = outages.setdefault(session.name, Outages(session.name))
        return LogStream(session, run.id, attempt, name, listener)

    if args.launcher:
        return [stream(_launcher_host(args, found), "launcher")], []
    known = attempt == run.attempt or not run.info.nodes
    places, silent = _newest(found) if known else await _earlier(found, attempt)
    if not args.merged:
        rank = args.rank or 0
        place = places.get(rank)
        if place is None and silent and not known:
            place = next(iter(silent.values()))  # it may be there
        if place is None and known and places:
            raise UsageError(f"There is no rank {rank} in {run.id}.", f"Its ranks are 0 to {max(places)}.")
        if isinstance(place, EncampError):
            raise place
        return [stream(place or found.lead, f"rank{rank}")], []  # the host says what it thinks of it
    for name, error in silent.items():
        output.note(output.clean(f"{name} cannot be asked, its ranks are left out: {error.message}"))
    return (
        [stream(place, f"rank{rank}") for rank, place in places.items() if isinstance(place, Session)],
        list(silent),
    )


def _launcher_host(args: argparse.Namespace, found: Found) -> Session:
    """The host that the user names, else the first one."""
    named = [session for session in found.sessions if session.name == args.on]
    return named[0] if named else found.lead


def _newest(found: Found) -> tuple[Places, Silent]:
    """By the numbers of ranks: each host has as many."""
    info = found.run.info
    if not info.nodes:
        return dict.fromkeys(range(info.world_size), found.lead), {}
    places: Places = {}
    silent: Silent = {}
    for node_rank, member in enumerate(found.members):
        place = member.problem or member.session
        assert place is not None, "a member without a session has a problem"
        if member.problem is not None:
            silent[member.name] = member.problem
        first = node_rank * info.nproc_per_node
        places.update(dict.fromkeys(range(first, first + info.nproc_per_node), place))
    return places, silent


async def _earlier(found: Found, attempt: int) -> tuple[Places, Silent]:
    """An earlier attempt may have been on more hosts: where there is a log, there was the rank."""
    sessions = await found.everyone()
    silent: Silent = {
        session.name: HostError(session.view.message, session.view.hint)
        for session in sessions
        if not session.live
    }

    async def look(session: Session) -> list[int]:
        answer = await session.request("run", {"run": found.id})
        return _ranks(answer.get("attempts"), attempt)

    there = await everywhere((session for session in sessions if session.live), look)
    by_name = {session.name: session for session in sessions}
    places: Places = {}
    for name, ranks in there.done.items():
        places.update(dict.fromkeys(ranks, by_name[name]))
    return dict(sorted(places.items())), {**silent, **there.failed}


def _ranks(attempts: Any, number: int) -> list[int]:
    """The ranks whose logs a host has of an attempt."""
    if not isinstance(attempts, list):
        return []
    entry = next(
        (entry for entry in attempts if isinstance(entry, dict) and entry.get("attempt") == number), {}
    )
    streams = entry.get("streams")
    names = streams if isinstance(streams, list | dict) else []
    return [int(match[1]) for name in names if isinstance(name, str) and (match := RANK.match(name))]


class Outages:
    """Says once that the connection with a host is gone, and once that it is back."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._lost = False

    def lost(self, reason: str) -> None:
        """See `log_stream.Listener`."""
        if not self._lost:
            self._lost = True
            output.note(output.clean(f"{reason} Going on when {self._host} answers again.".strip()))

    def back(self) -> None:
        """See `log_stream.Listener`."""
        if self._lost:
            self._lost = False
            output.note(f"{self._host} answers again")
