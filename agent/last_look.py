"""What ranks that make no progress show, written down before somebody stops or kills them: it ends with them.

Where an alarm was called that has been done already. Ranks that are well are not looked at: nobody who stops
a training that runs wants to wait.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Sequence

from . import files, inquiry, stall, wire
from .attempt import Attempt
from .diagnosis import diagnose
from .signals.look import Known
from .watch import Watcher

FILE = "last-look.json"
"""In the attempt's folder, as an alarm's: `diagnosis` and `evidence`."""

WAIT_SECONDS = 4.0
"""How long a stop waits for it at most. A look takes a second and a bit; where the disk hangs, longer."""


async def take(watcher: Watcher, gpus: Sequence[wire.GpuSample], attempt: Attempt) -> None:
    """Look at the ranks of `attempt` on this host, if one of them is silent and nobody has looked yet."""
    stalled = watcher.stalls().get((attempt.run, attempt.number))
    if stalled is None or stalled.alarm is not None:
        return
    known = stalled.known(time.monotonic())
    if not any(_silent(one) for one in known):
        return
    looking = asyncio.get_running_loop().run_in_executor(
        None, _look, attempt, known, tuple(gpus), stalled.allowed
    )
    await asyncio.wait([looking], timeout=WAIT_SECONDS)
    if looking.done():
        looking.result()


def _silent(known: Known) -> bool:
    return known.sample.state == "running" and (known.age or 0.0) > stall.MIN_SECONDS


def _look(attempt: Attempt, known: Sequence[Known], gpus: Sequence[wire.GpuSample], allowed: float) -> None:
    found = inquiry.evidence(attempt, known, gpus, allowed)
    told = {"diagnosis": wire.to_json(diagnose(found)), "evidence": wire.to_json(found)}
    try:
        files.write_json(os.path.join(attempt.dir, FILE), told)
    except OSError:
        pass  # on a full disk the stop goes on without
