"""Waiting for a run on several hosts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence

from agent import wire

from .blame import failure
from .errors import HostError, Unreachable
from .run_watch import ENDING_SECONDS, POLL_SECONDS, STEADY_SECONDS, NoSuchRun, Timeout, rank_failed
from .session import Session
from .store import NodeView, RunView, Store

LOST_SECONDS = 20.0
"""A host that cannot be asked for so long while its ranks start counts as lost: the others would wait."""


async def started(sessions: Sequence[Session], run: str, attempt: int) -> None:
    """Wait until all ranks on all hosts have started and survived their first moments.

    Raises RunFailed when one ended in another way than by finishing, Unreachable when a host is lost.
    """
    watch = _Watch(sessions, run, attempt)
    while not all(node.info.state in ("running", "stalled", "finished") for node in watch.nodes()):
        await watch.look()
    ending = False
    deadline = time.monotonic() + STEADY_SECONDS
    while time.monotonic() < deadline:
        if not ending and any(rank_failed(node) for node in watch.nodes()):
            ending = True  # its launcher first ends the other ranks, then says so
            deadline = time.monotonic() + ENDING_SECONDS
        await watch.look()


class _Watch:
    """Looks at one attempt on some hosts."""

    def __init__(self, sessions: Sequence[Session], run: str, attempt: int) -> None:
        self._sessions = sessions
        self._run = run
        self._attempt = attempt
        self._seen = {session.name: time.monotonic() for session in sessions}

    def nodes(self) -> list[NodeView]:
        """The hosts' parts; a stand-in of no state for one that has not told of the attempt yet."""
        return [self._node(session) for session in self._sessions]

    async def look(self) -> None:
        """Pause. Raises RunFailed, Unreachable."""
        now = time.monotonic()
        for session in self._sessions:
            session.check()
            if session.live:
                self._seen[session.name] = now
            elif now - self._seen[session.name] > LOST_SECONDS:
                raise Unreachable(
                    f"{session.name} was lost while its ranks started: {session.view.message}",
                    "Launch on other hosts, or when it answers again.",
                )
        if any(node.info.state in ("failed", "stopped") for node in self.nodes()):
            raise await failure(self._sessions, self._run, self._attempt)
        await asyncio.sleep(POLL_SECONDS)

    def _node(self, session: Session) -> NodeView:
        view = session.view.runs.get(self._run)
        if view is not None and view.info.attempt >= self._attempt:
            return view
        info = wire.Run(self._run, "", "", "", self._attempt, "starting", "", 0, 0, None, 0, 0, "", (), "")
        return NodeView(session.name, info, 0.0)


async def wait(
    store: Store,
    sessions: Sequence[Session],
    run: str,
    states: Collection[str],
    *,
    timeout: float | None = None,
) -> RunView:
    """Wait until the whole run is in one of `states`, or has ended in another way, and return it.

    Reconnects are waited through. Raises Timeout after `timeout` seconds, NoSuchRun when all hosts have
    forgotten the run, HostError when no connection goes on without a person's help.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        view = store.find_run(run)
        if view is None:
            if all(session.view.ready for session in sessions):
                raise NoSuchRun(f"There is no run {run} any more.", "See: encamp status")
        elif (state := view.state) in states or (state in wire.END_STATES and not view.live):
            return view
        check(sessions)
        if deadline is not None and time.monotonic() >= deadline:
            raise Timeout(
                f"Run {run} did not get there within {timeout:g} s.", "Nothing was changed: it goes on."
            )
        await asyncio.sleep(POLL_SECONDS)


def check(sessions: Sequence[Session]) -> None:
    """Raise what ended the sessions, when none is left that could still tell something."""
    problem: HostError | None = None
    for session in sessions:
        try:
            session.check()
        except HostError as error:
            problem = error
        else:
            return
    if problem is not None:
        raise problem
