"""Signals to one rank of a run, sent by the agent on the rank's host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import EncampError, HostError, RequestRefused, UsageError
from .session import Session
from .store import RunView

SIGNALS = (
    "SIGSTOP", "SIGCONT", "SIGTERM", "SIGKILL", "SIGINT", "SIGHUP", "SIGQUIT", "SIGABRT",
    "SIGUSR1", "SIGUSR2",
)  # fmt: skip
"""What can be sent."""

HARMLESS = ("SIGCONT",)
"""All others end a rank that does not handle them, or hold it up, and with it the whole job."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal that a rank's process has got."""

    host: str
    pid: int


def named(word: str) -> str:
    """The signal that is meant: `kill`, `KILL` and `SIGKILL` are one. Raises UsageError."""
    name = word.upper() if word.upper().startswith("SIG") else f"SIG{word.upper()}"
    if name not in SIGNALS:
        short = ", ".join(each[3:] for each in SIGNALS)
        raise UsageError(f"--signal {word}: that cannot be sent.", f"There is {short}.")
    return name


def session_of(run: RunView, rank: int, sessions: Sequence[Session]) -> Session:
    """The connection with the host of a rank. Raises UsageError for one that there is not, HostError."""
    if not 0 <= rank < run.info.world_size:
        raise UsageError(
            f"{run.id} has no rank {rank}.", f"Its ranks are 0 to {run.info.world_size - 1}: encamp status"
        )
    part = run.part_of(rank)
    session = next((each for each in sessions if part and each.name == part[0].name), None)
    if session is None or not session.live:
        raise HostError(f"The host of rank {rank} cannot be asked.", "See: encamp status")
    return session


async def send(
    run: RunView,
    rank: int,
    signal: str,
    actor: str,
    sessions: Sequence[Session],
    undo_after_seconds: float | None = None,
) -> Sent:
    """Send `signal`, one of SIGNALS. With `undo_after_seconds` the host ends a SIGSTOP by then by itself.

    It is not asked for again when the connection breaks. Raises UsageError, RequestRefused, HostError.
    """
    session = session_of(run, rank, sessions)
    params = {"run": run.id, "attempt": run.attempt, "rank": rank, "signal": signal, "actor": actor}
    if undo_after_seconds is not None:
        params["undo_after_seconds"] = undo_after_seconds
    try:
        reply = await session.request("signal", params)
    except RequestRefused as error:
        if error.code == "unknown-method":
            raise EncampError(
                f"The agent on {session.name} is of an older encamp, which sends no signals.",
                "Another encamp keeps it there: use the same version wherever you look at this host from.",
            ) from error
        raise
    pid = reply.get("pid")
    if not isinstance(pid, int):
        raise EncampError(f"The answer of {session.name} makes no sense: no pid.")
    return Sent(session.name, pid)
