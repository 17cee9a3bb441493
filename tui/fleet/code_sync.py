"""A project's files on hosts: sent over the connections that there are, only what has changed, verified."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .code_upload import Upload
from .errors import EncampError, HostError, RequestRefused, Unreachable
from .parallel import everywhere
from .project import Project
from .runs import RECONNECT_SECONDS, request
from .session import Session

HAS_SECONDS = 120.0
"""How long a host may take to look at all files of a project that it has."""

MAX_LOSSES = 5
"""So often in a row the connection may be lost without anything of the project getting there."""

Progress = Callable[[str, int, int], None]
"""Is told a host's name, the bytes of the project that it has, of those that it did not have before, and all
of these."""


def ignore_progress(host: str, done: int, total: int) -> None:
    """For those who do not want to know."""
    del host, done, total


async def sync(session: Session, project: Project, progress: Progress = ignore_progress) -> None:
    """Have the project on the host, as `project.tree` says. One question when it is there already.

    Goes on after each loss of the connection, where it stopped. Raises RequestRefused, FileChanged,
    HostError.
    """
    if await _has(session, project):
        return
    losses, here, reached, whole = 0, 0, -1, 0
    changed = False

    def shown(done: int, total: int) -> None:
        """After a loss fewer files are missing; for who looks on it is still one transfer."""
        nonlocal here, whole
        whole = max(whole, total)
        here = whole - (total - done)
        progress(session.name, here, whole)

    while True:
        try:
            await Upload(session, project, shown).send()
            return
        except RequestRefused as error:
            # What an earlier transfer left may be damaged: by now it is removed.
            if error.code != "changed" or changed:
                raise
            changed = True
        except Unreachable as error:
            losses = losses + 1 if here <= reached else 1
            reached = max(reached, here)
            if losses >= MAX_LOSSES:
                raise
            await _back(session, error)


async def sync_all(
    sessions: Iterable[Session], project: Project, progress: Progress = ignore_progress
) -> None:
    """`sync` on all hosts at once. Raises HostsFailed, which names the hosts."""
    (await everywhere(sessions, lambda session: sync(session, project, progress))).results()


async def _has(session: Session, project: Project) -> bool:
    try:
        answer = await request(session, "tree_has", {"sha256": project.tree.sha256}, timeout=HAS_SECONDS)
    except RequestRefused as error:
        if error.code != "unknown-method":
            raise
        raise EncampError(
            f"The agent on {session.name} is too old to be sent a project.",
            "Another encamp keeps it there: use the same version wherever you look at this host from.",
        ) from error
    return answer.get("present") is True


async def _back(session: Session, error: Unreachable) -> None:
    """Wait for the host. Raises HostError when it does not come back."""
    try:
        await session.connected(RECONNECT_SECONDS)
    except HostError as final:
        hint = "What has come is kept: the next launch goes on where it stopped."
        raise HostError(final.message, f"{final.hint} {hint}".strip()) from error
