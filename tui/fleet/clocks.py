"""The hosts' clocks against ours, measured."""

from __future__ import annotations

import math
import time

from .check_facts import Clock
from .errors import EncampError
from .session import Session

PINGS = 5
"""The fastest of so many counts: what delays one is in the way once, not each time."""


async def against_ours(session: Session, pings: int = PINGS) -> Clock | None:
    """The host's clock against ours, by the fastest of some round trips; None when it does not say."""
    best: Clock | None = None
    for _ in range(pings):
        sent_wall, sent = time.time(), time.monotonic()
        try:
            theirs = (await session.request("ping", {})).get("time")
        except EncampError:
            break
        trip = time.monotonic() - sent
        if not isinstance(theirs, float) or not math.isfinite(theirs):
            break
        if best is None or trip < best.round_trip:
            best = Clock(theirs - (sent_wall + trip / 2), trip)
    return best
