"""Which rank of a run on several hosts is to blame for its failure.

The first to fail takes the others with it, within a moment and each in its own words. So a rank that was
killed, or that says that another one is gone, is blamed only when nobody else is there to blame.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import NamedTuple

from .errors import HostError, RequestRefused
from .run_watch import CONSEQUENCES, SETTLE_SECONDS, RunFailed, Timeout, last_words, until
from .session import Session
from .store import NodeView

SUSPECTS = 8
"""Ranks whose last words are looked at when several have failed."""

PEER_LOST = re.compile(
    r"connection (reset|closed) by|broken pipe|connection refused|remote process exited|socket timeout"
    r"|heartbeat",
    re.IGNORECASE,
)
"""What a rank says that failed because another one was gone."""


class Suspect(NamedTuple):
    """A stream that may tell why a run has failed."""

    session: Session
    node: NodeView
    stream: str
    killed: bool = False
    """By a signal that launchers send to ranks when another one has failed."""


async def failure(sessions: Sequence[Session], run: str, attempt: int) -> RunFailed:
    """Why an attempt has ended, with the last words of the rank to blame as far as that can be told."""

    def parts() -> list[tuple[Session, NodeView]]:
        views = ((session, session.view.runs.get(run)) for session in sessions)
        return [(session, node) for session, node in views if node and node.info.attempt == attempt]

    def settled() -> bool | None:
        ranks = [rank for _, node in parts() for rank in node.ranks.values()]
        return all(rank.sample.state in ("exited", "lost") for rank in ranks) or None

    try:
        await until(sessions[0], settled, SETTLE_SECONDS, "")
    except (Timeout, HostError):
        pass  # then what is known is what there is
    found = suspects(parts())
    tails = await asyncio.gather(*(_words(suspect, run, attempt) for suspect in found))
    guilty, tail = most_likely(found, tails)
    if not tail.strip() and guilty.stream != "launcher":
        guilty = guilty._replace(stream="launcher")
        tail = await _words(guilty, run, attempt)
    info = guilty.node.info
    reason = info.reason or (
        f"exit code {info.exit_code}" if info.exit_code is not None else "no reason known"
    )
    name = guilty.session.name
    where = f"--rank {guilty.stream[4:]}" if guilty.stream != "launcher" else f"--launcher --on {name}"
    return RunFailed(
        run,
        attempt,
        f"Run {run} {info.state} on {name}: {reason}",
        f"All of it: encamp logs {run} {where}",
        guilty.stream,
        tail,
        name,
    )


def suspects(parts: Sequence[tuple[Session, NodeView]]) -> list[Suspect]:
    """The ranks that failed, those that were not killed first; without any, the launchers in their order."""
    failed = [
        Suspect(session, node, f"rank{rank.sample.rank}", rank.sample.exit_code in CONSEQUENCES)
        for session, node in parts
        for rank in node.ranks.values()
        if rank.sample.exit_code not in (None, 0)
    ]
    failed.sort(key=lambda suspect: (suspect.killed, int(suspect.stream[4:])))
    ended = [part for part in parts if part[1].info.state in ("failed", "stopped")]
    ended.sort(key=lambda part: (part[1].info.ended or 0.0) - part[0].view.clock_offset)
    return failed[:SUSPECTS] or [Suspect(session, node, "launcher") for session, node in ended or parts]


def most_likely(found: Sequence[Suspect], tails: Sequence[str]) -> tuple[Suspect, str]:
    """The one to blame and its last words."""

    def innocence(pair: tuple[Suspect, str]) -> tuple[bool, bool]:
        return pair[0].killed, bool(PEER_LOST.search(pair[1]))

    return min(zip(found, tails, strict=True), key=innocence)


async def _words(suspect: Suspect, run: str, attempt: int) -> str:
    try:
        return await last_words(suspect.session, run, attempt, suspect.stream)
    except (RequestRefused, HostError):
        return ""
