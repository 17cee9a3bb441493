"""What the demo says while its run starts: that may take a minute, and most of it is imports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from .demo_run import DemoRun, packages
from .fleet.session import Session

PATIENCE_SECONDS = 5.0
"""So long nothing is said."""

AGAIN_SECONDS = 15.0
"""After so long the same is said again."""

LOOK_SECONDS = 0.5


def phase(session: Session, what: DemoRun) -> str:
    """What the newest run on the host does until all of its ranks have taken a step."""
    view = next(iter(session.view.runs.values()), None)
    if view is None:
        return f"{session.name} gets the trainer's code, and looks for the Python of the ranks"
    if len(view.ranks) < what.ranks:
        return f"the launcher starts {what.ranks} ranks, of which {len(view.ranks)} are there"
    if view.training is None:
        return f"its ranks import {' and '.join(packages(what.strategy))}, and wait until all have done so"
    return "its ranks take their first step"


@contextlib.contextmanager
def told(
    session: Session, what: DemoRun, now: Callable[[], float], say: Callable[[str], None]
) -> Iterator[None]:
    """Say during the body what it waits for, when that lasts. `now` is in seconds since the demo's start."""
    task = asyncio.ensure_future(_tell(session, what, now, say))
    try:
        yield
    finally:
        task.cancel()


async def _tell(
    session: Session, what: DemoRun, now: Callable[[], float], say: Callable[[str], None]
) -> None:
    await asyncio.sleep(PATIENCE_SECONDS)
    last, at = "", 0.0
    while True:
        words = phase(session, what)
        if words != last or now() - at >= AGAIN_SECONDS:
            say(f"after {now():.0f} s: {words}")
            last, at = words, now()
        await asyncio.sleep(LOOK_SECONDS)
