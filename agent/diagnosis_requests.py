"""The requests that ask why an attempt gets no further."""

from __future__ import annotations

import dataclasses
import time
from typing import Optional

from . import inquiry, runs, wire
from .actions import in_thread
from .services import Methods, Result, Services, attempt_of
from .signals.look import Known
from .viewer import Viewer


@dataclasses.dataclass(frozen=True)
class EvidenceOf:
    """Which attempt; None: the newest."""

    run: str
    attempt: Optional[int] = None


async def evidence(services: Services, viewer: Viewer, params: EvidenceOf) -> Result:
    """What the ranks of an attempt on this host show now, and the alarm that was called, if one was."""
    del viewer
    number = params.attempt
    if number is None:
        number = runs.current(services.home, params.run).number
    attempt = attempt_of(services, params.run, number)
    status = await services.actions.gpu_status()
    stalled = services.watcher.stalls().get((attempt.run, attempt.number))
    if stalled is None:
        samples = await in_thread(services.watcher.ranks_of, attempt)
        known = [Known(sample) for sample in samples]
        found = await in_thread(inquiry.evidence, attempt, known, status.gpus, 0.0)
        return {"evidence": wire.to_json(found), "alarm": None}
    services.watcher.keep((attempt.run, attempt.number))
    known = stalled.known(time.monotonic())
    found = await in_thread(inquiry.evidence, attempt, known, status.gpus, stalled.allowed)
    stalled.hold(rank.rank for rank in found.ranks if rank.gil_free is False)
    alarm = stalled.alarm
    if alarm is not None:  # what it rests on is in the attempt's folder; all of this is one line
        alarm = dataclasses.replace(alarm, ranks=(), evidence=())
    return {"evidence": wire.to_json(found), "alarm": None if alarm is None else wire.to_json(alarm)}


METHODS: Methods = {
    "evidence": (EvidenceOf, evidence),
}
