"""Waiting for runs, and finding out why one has failed.

Nothing is asked of a host but the end of a log: the store is looked at until it shows what is waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import TypeVar

from agent import wire

from .errors import EncampError, HostError, RequestRefused
from .session import Session
from .store import NodeView

T = TypeVar("T")

POLL_SECONDS = 0.05
"""How often a wait looks at the store."""

STEADY_SECONDS = 1.2
"""How long ranks that have started are watched for dying at once. Samples come each second."""

ENDING_SECONDS = 60.0
"""How long a run may take to end after a rank has failed: torchrun waits for the others."""

SETTLE_SECONDS = 3.0
"""How long the last samples of a run's ranks may take after its end."""

TAIL_BYTES = 16 * 1024
TAIL_LINES = 30
"""How much of a failed rank's log a message repeats."""

CONSEQUENCES = (-15, 143, -9, 137)
"""Exit codes of ranks that were ended because another one failed."""


class RunFailed(EncampError):
    """A run ended although it should have gone on. `tail` are its last words, in `stream` on `host`."""

    def __init__(
        self, run: str, attempt: int, message: str, hint: str, stream: str, tail: str, host: str
    ) -> None:
        super().__init__(message, hint)
        self.run = run
        self.attempt = attempt
        self.stream = stream
        self.tail = tail
        self.host = host


class Timeout(EncampError):
    """A run did not reach the state that was waited for in time."""


class NoSuchRun(EncampError):
    """No host that answers knows the run."""

    exit_code = 2


async def started(session: Session, run: str, attempt: int) -> NodeView:
    """Wait until all ranks of an attempt have started and survived their first moments, and return the run.

    Raises RunFailed when it ended before that in any other way than by finishing.
    """
    view = await wait(session, run, ("running", "stalled", *wire.END_STATES), attempt=attempt)
    if view.live:
        try:
            await until(session, lambda: _going_down(view), STEADY_SECONDS, "")
            view = await wait(session, run, (), timeout=ENDING_SECONDS, attempt=attempt)
        except Timeout:
            pass
    if view.info.state in ("failed", "stopped"):
        raise await failure(session, view)
    return view


async def wait(
    session: Session, run: str, states: Collection[str], *, timeout: float | None = None, attempt: int = 0
) -> NodeView:
    """Wait until the run is in one of `states`, or has ended in another way, and return it.

    The attempt that counts is the newest, and not before `attempt`. Reconnects are waited through. Raises
    Timeout after `timeout` seconds, NoSuchRun when the host has forgotten the run, HostError when the
    connection needs a person's help.
    """

    def reached() -> NodeView | None:
        host = session.view
        view = host.runs.get(run)
        if view is None:
            if host.ready:
                raise NoSuchRun(f"There is no run {run} on {host.name} any more.", "See: encamp status")
            return None
        if view.info.attempt < attempt:
            return None
        state = host.run_state(view)
        return view if state in states or state in wire.END_STATES else None

    return await until(session, reached, timeout, f"Run {run} did not get there")


def _going_down(view: NodeView) -> bool | None:
    """Whether the run has ended or is about to, because a rank has failed."""
    return not view.live or rank_failed(view) or None


def rank_failed(view: NodeView) -> bool:
    """Whether a rank has ended as it should not have."""
    ranks = (rank.sample for rank in view.ranks.values())
    return any(rank.state == "lost" or rank.exit_code not in (None, 0) for rank in ranks)


async def settled(session: Session, view: NodeView) -> NodeView:
    """Wait for the last word on the ranks of a run that has ended: it comes right after its end."""

    def over() -> bool | None:
        ranks = view.ranks.values()
        return all(rank.sample.state in ("exited", "lost") for rank in ranks) or None

    try:
        await until(session, over, SETTLE_SECONDS, "")
    except Timeout:
        pass  # then what is known is what there is
    return view


async def until(
    session: Session, condition: Callable[[], T | None], timeout: float | None, complaint: str
) -> T:
    """Look at the store until `condition` returns something. Raises Timeout, HostError."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        found = condition()
        if found is not None:
            return found
        session.check()
        if deadline is not None and time.monotonic() >= deadline:
            raise Timeout(f"{complaint} within {timeout:g} s.", "Nothing was changed: it goes on as before.")
        await asyncio.sleep(POLL_SECONDS)


async def failure(session: Session, view: NodeView) -> RunFailed:
    """Why a run has ended, with the last words of the rank that is to blame as far as that can be told."""
    await settled(session, view)
    info = view.info
    stream = _culprit(view)
    try:
        tail = await last_words(session, info.run, info.attempt, stream)
        if not tail.strip() and stream != "launcher":
            stream = "launcher"
            tail = await last_words(session, info.run, info.attempt, stream)
    except (RequestRefused, HostError):
        tail = ""
    reason = info.reason or (
        f"exit code {info.exit_code}" if info.exit_code is not None else "no reason known"
    )
    return RunFailed(
        info.run,
        info.attempt,
        f"Run {info.run} {info.state}: {reason}",
        f"All of it: encamp logs {info.run}"
        + (f" --rank {stream[4:]}" if stream != "launcher" else " --launcher"),
        stream,
        tail,
        session.name,
    )


def _culprit(view: NodeView) -> str:
    """The stream to look into first: of a rank that failed by itself, not of one that was ended for it."""
    failed = [rank.sample for rank in view.ranks.values() if rank.sample.exit_code not in (None, 0)]
    failed.sort(key=lambda rank: (rank.exit_code in CONSEQUENCES, rank.rank))
    return f"rank{failed[0].rank}" if failed else "launcher"


async def last_words(session: Session, run: str, attempt: int, stream: str) -> str:
    """The last lines of a stream. Raises RequestRefused, HostError."""
    part = await session.read_log(run, attempt, stream, -TAIL_BYTES, TAIL_BYTES)
    return "\n".join(part.data.decode("utf-8", "replace").splitlines()[-TAIL_LINES:])
