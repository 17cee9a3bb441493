"""What a run reported before this viewer looked: its host keeps it, and is asked when somebody wants it."""

from __future__ import annotations

from agent import wire

from .errors import EncampError
from .session import Session

RECORDS = 1000
"""Points of a curve: more than a graph has columns, few enough for one line of the wire."""


async def recall(session: Session, run: str, attempt: int, rank: int) -> None:
    """Put the records of a rank, evenly thinned, into the store before those that have come by themselves.

    Raises RequestRefused, HostError, and EncampError for an answer that makes no sense.
    """
    params = {"run": run, "attempt": attempt, "rank": rank, "limit": RECORDS}
    answer = await session.request("progress", params)
    which = {"run": run, "attempt": attempt, "rank": rank}
    try:
        history = wire.from_json(wire.Progress, {**which, "records": answer.get("records")})
    except wire.WireError as error:
        raise EncampError(f"{session.name} tells of {run} what makes no sense: {error}.") from error
    session.store.put_history(session.name, history)
