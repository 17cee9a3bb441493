"""Restarting a run: stopped everywhere, then its next attempt everywhere or nowhere.

All that can be refused is found out before anything is stopped. A run on one host is restarted by a single
request; so is one that never had another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent import wire

from . import arrange, faulty, group_stop, launch_secrets, run_watch, runs
from .arrange import Wish
from .coordinator import Launched, begin, bring, call_off, on_one
from .errors import EncampError, HostError, RequestRefused, UsageError
from .members import Member
from .parallel import HostsFailed, Progress, everywhere
from .session import Session

if TYPE_CHECKING:
    from profiles.schema import NetworkSection


SUPERSEDED = "superseded"
"""How a host refuses what was meant for an attempt that has been followed by another."""


@dataclass(frozen=True)
class Known:
    """What a host has of a run: what its newest attempt was launched with."""

    spec: wire.LaunchSpec
    attempt: int


class CannotGoOn(HostError):
    """Some hosts of a run cannot take part in its next attempt, and nobody said to go on without them."""


async def restart(
    members: Sequence[Member],
    others: Sequence[Session],
    run: str,
    actor: str,
    *,
    without: Sequence[str] = (),
    forced: str = "",
    resume_step: int | None = None,
    attempt: int | None = None,
    progress: Progress,
) -> Launched:
    """Start the next attempt on all members but those called in `without`; returns when its ranks run.

    `others` are hosts on which an older attempt still goes on: it is stopped. `resume_step` is the checkpoint
    to go back to; None is the newest, 0 none. `attempt` is the one that was looked at: when a later one has
    begun, somebody else has restarted the run, and it is left alone. Raises UsageError, CannotGoOn,
    RequestRefused (`superseded`), HostsFailed, HostsDiffer, Blocked, RunFailed.
    """
    staying = staying_members(members, without, run)
    sessions = [member.session for member in staying if member.session is not None]
    if not forced:
        refuse_faulty(sessions, run)
    if len(members) == 1 and not members[0].node.address:
        return await _restart_on_one(sessions[0], run, actor, forced, resume_step, attempt, progress)
    leaving = [member for member in members if member not in staying]
    reachable = [member.session for member in leaving if member.session and not member.problem]
    known = (await everywhere([*sessions, *reachable], lambda session: _known(session, run))).results()
    newest = _agreed(run, known)
    if attempt is not None and newest.attempt > attempt:
        raise RequestRefused(
            SUPERSEDED, f"Attempt {newest.attempt} of {run} was begun meanwhile.", "Look at that one first."
        )
    secrets = await _secrets(sessions, run, newest.spec.secret_sources)
    wish = Wish(newest.spec, newest.attempt + 1, restarting=True, forced=forced, resume_step=resume_step)
    arranged = await arrange.arrange(sessions, wish, _network(staying), progress)
    await bring(arranged.sessions, newest.spec, None, progress)
    stopped = await group_stop.stop(members, others, run, actor, None, progress, attempt=newest.attempt)
    for error in stopped.failed.values():
        if getattr(error, "code", "") == SUPERSEDED:
            raise error
    if any(session.name in stopped.failed for session in sessions):
        raise group_stop.complaint(run, stopped)
    try:
        return await begin(arranged, wish, actor, secrets, _note(leaving), progress)
    except HostsFailed as error:
        _offer_without(run, error, len(staying))
        raise


def refuse_faulty(sessions: Sequence[Session], run: str) -> None:
    """Raise CannotGoOn when a GPU that the run has on one of these hosts is lost or had a fatal error."""
    broken = {session.name: faulty.gpus(session.view, run) for session in sessions}
    names = [name for name, what in broken.items() if what]
    if not names:
        return
    said = "\n".join(f"{name}: {what}" for name in names for what in broken[name])
    forced = f'encamp restart {run} --force "the GPU was reset"'
    if len(names) < len(sessions):
        words = " ".join(f"--without {name}" for name in names)
        hint = f"Go on without: encamp restart {run} {words}\n  Or, when that is over: {forced}"
    else:
        hint = f"Reset the GPU, reboot the host, or use another. When that is done: {forced}"
    raise CannotGoOn(f"{run} was not restarted, and nothing was stopped.\n{said}", hint)


def _offer_without(run: str, error: HostsFailed, hosts: int) -> None:
    """Raise CannotGoOn when what is in the way on some hosts are processes that could not be ended."""
    stuck = [name for name, each in error.failures.items() if getattr(each, "code", "") == "left-alive"]
    if stuck and len(stuck) < hosts:
        words = " ".join(f"--without {name}" for name in stuck)
        raise CannotGoOn(
            f"{run} was stopped, and not started again.\n{error.message}",
            f"{error.hint}\n  Or go on with fewer hosts: encamp restart {run} {words}",
        ) from error


def _network(staying: Sequence[Member]) -> NetworkSection:
    """What the first attempt was told of the network, as far as the hosts still know it."""
    from profiles.schema import NetworkSection

    interfaces = {member.node.interface for member in staying}
    return NetworkSection(interface=interfaces.pop() if len(interfaces) == 1 else "")


def staying_members(members: Sequence[Member], without: Sequence[str], run: str) -> list[Member]:
    """The members that go on. Raises UsageError, CannotGoOn."""
    names = _names(members)
    for name in without:
        if name not in names:
            raise UsageError(f"{name} is not a host of {run}.", f"Its hosts are: {', '.join(names)}")
    staying = [member for member in members if member.name not in without]
    if not staying:
        raise UsageError(f"No host of {run} is left to go on.", f"To end it: encamp stop {run}")
    lost = [member for member in staying if member.problem is not None]
    if lost:
        reasons = "\n".join(f"{member.name}: {member.problem.message}" for member in lost if member.problem)
        if len(lost) == len(members):
            raise CannotGoOn(reasons, lost[0].problem.hint if lost[0].problem else "")
        words = " ".join(f"--without {member.name}" for member in lost)
        hints = dict.fromkeys(
            member.problem.hint for member in lost if member.problem and member.problem.hint
        )
        raise CannotGoOn(
            f"{run} was not restarted: not all of its hosts can take part.\n{reasons}",
            "\n  ".join([*hints, f"Wait for them, or go on with fewer: encamp restart {run} {words}"]),
        )
    return staying


def _note(leaving: Sequence[Member]) -> str:
    """What the run's record says of hosts that were left out."""
    reasons = (member.problem.message.rstrip(".") if member.problem else "it answers" for member in leaving)
    left = (f"{member.name} ({reason})" for member, reason in zip(leaving, reasons, strict=True))
    return f"without {', '.join(left)}" if leaving else ""


def _names(members: Sequence[Member]) -> list[str]:
    return [member.name for member in members]


async def _secrets(sessions: Sequence[Session], run: str, sources: Mapping[str, str]) -> Mapping[str, str]:
    """The values that the next attempt on these hosts gets. Raises UsageError."""
    hosts = [session.view.host_id for session in sessions]
    return await asyncio.to_thread(launch_secrets.resolve_again, run, sources, hosts)


async def _known(session: Session, run: str) -> Known:
    return runs.read_answer(Known, await runs.request(session, "spec", {"run": run}))


def _agreed(run: str, known: Mapping[str, Known]) -> Known:
    """What the hosts say that the run is. One of them alone must not tell the others what to execute."""
    newest = max(known.values(), key=lambda each: each.attempt)
    others = [name for name, each in known.items() if each.spec != newest.spec]
    if others:
        first = next(name for name, each in known.items() if each is newest)
        raise EncampError(
            f"{first} and {', '.join(others)} tell different things of what {run} was launched with.",
            "Stop it, and launch it anew from its profile.",
        )
    return newest


async def _restart_on_one(
    session: Session,
    run: str,
    actor: str,
    forced: str,
    resume_step: int | None,
    attempt: int | None,
    progress: Progress,
) -> Launched:
    """The same by the request that does all of it."""
    try:
        sources: Mapping[str, str] = (await _known(session, run)).spec.secret_sources
    except RequestRefused as error:
        if error.code != "unknown-method":  # an agent that knows no secrets
            raise
        sources = {}
    secrets = await _secrets([session], run, sources)
    progress(session.name, "restarting")
    try:
        result = await runs.restart(
            session, run, actor, secrets=secrets, forced=forced, resume_step=resume_step, attempt=attempt
        )
        await run_watch.started(session, result.run, result.attempt)
    except asyncio.CancelledError:
        await call_off(session, run, actor, progress)
        raise
    return on_one(session, result)
