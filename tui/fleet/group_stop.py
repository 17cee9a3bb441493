"""Stopping a run on all of its hosts at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from . import runs
from .errors import EncampError, HostError
from .members import Forgotten, Member
from .parallel import Progress, everywhere
from .session import Session

TELL_SECONDS = 1.0
"""How long an interrupted stop goes on, so that all hosts hear of it: half a run is worse than none."""


@dataclass(frozen=True)
class Stopped:
    """How a host's part of a run ended, and the processes that had to be ended one by one."""

    state: str
    reaped: list[int]


@dataclass(frozen=True)
class StoppedEverywhere:
    """What came of it: by host, and which hosts could not be asked and why."""

    hosts: dict[str, Stopped]
    failed: dict[str, EncampError]

    @property
    def state(self) -> str:
        """How the run ended: `failed` or `stopped` where one host says so."""
        states = [stopped.state for stopped in self.hosts.values()]
        return next((state for state in ("failed", "stopped", "finished") if state in states), "stopped")

    @property
    def reaped(self) -> int:
        """How many processes had to be ended one by one."""
        return sum(len(stopped.reaped) for stopped in self.hosts.values())


class NotStoppedEverywhere(HostError):
    """A run was stopped where it could be, and some of its hosts could not be asked."""


async def stop(
    members: Sequence[Member],
    others: Sequence[Session],
    run: str,
    actor: str,
    grace_seconds: float | None,
    progress: Progress,
    *,
    attempt: int | None = None,
) -> StoppedEverywhere:
    """Stop the run on all members that can be asked, and on `others`, where an older attempt goes on.

    Returns once all of its processes are gone there. A host that has forgotten the run has nothing to stop.
    With `attempt`, a host on which a later one has begun refuses (`superseded`). Cancelled, it sees to it
    that all are told, and leaves the rest to them.
    """

    async def stop_one(session: Session) -> Stopped:
        progress(session.name, "stopping")
        try:
            stopped = Stopped(**await runs.stop(session, run, actor, grace_seconds, attempt))
        except EncampError as error:
            progress(session.name, f"not stopped: {error.message}")
            raise
        progress(session.name, f"{stopped.state}, {len(stopped.reaped)} reaped")
        return stopped

    failed = {
        member.name: member.problem
        for member in members
        if member.problem is not None and not isinstance(member.problem, Forgotten)
    }
    for name, problem in failed.items():
        progress(name, f"cannot be asked: {problem.message}")
    reached = [member.session for member in members if member.session is not None and not member.problem]
    asked = [*reached, *(other for other in others if other not in reached)]
    stopping = asyncio.ensure_future(everywhere(asked, stop_one))
    try:
        outcome = await asyncio.shield(stopping)
    except asyncio.CancelledError:
        await asyncio.wait([stopping], timeout=TELL_SECONDS)
        stopping.cancel()
        raise
    return StoppedEverywhere(outcome.done, {**failed, **outcome.failed})


def complaint(run: str, stopped: StoppedEverywhere) -> NotStoppedEverywhere:
    """What is to be said when some hosts could not be asked."""
    reasons = "\n".join(f"{name}: {error.message}" for name, error in stopped.failed.items())
    where = f"{', '.join(stopped.hosts) or 'no host'}; not on {', '.join(stopped.failed)}"
    return NotStoppedEverywhere(
        f"{run} was stopped on {where}, which could not be asked. Its ranks there may go on.\n{reasons}",
        f"When it answers again: encamp stop {run}",
    )
