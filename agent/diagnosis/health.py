"""Rules about training that goes on: well, slowly, or for nothing."""

from __future__ import annotations

from typing import Optional

from . import places, waiting
from .case import Case, named, seen, verdict_on
from .verdict import Diagnosis

LAG_SHARE = 0.3
"""A rank that comes later than the first to every collective by this share of a step is slow."""

MIN_LAG_SECONDS = 0.02


def not_a_number(case: Case) -> Optional[Diagnosis]:
    """Training that goes on with a loss that is no number any more."""
    bad = [rank for rank in case.running if rank.loss in ("nan", "inf", "-inf")]
    if not bad:
        return None
    findings = [seen(rank, "progress", f"its loss at step {rank.step} is {rank.loss}") for rank in bad]
    return verdict_on(  # not sure at once: a scaler of gradients may skip such a step
        case, "nan", bad, 0.85, f"the loss is {bad[0].loss} on {named(bad)}, and training goes on", findings
    )


def going_on(case: Case) -> Optional[Diagnosis]:
    """Nothing is stalled: all is well, or one of them slows the others down."""
    if case.stalled:
        return None
    offsets = {host.name: host.clock_offset for host in case.evidence.hosts}
    behind = waiting.lags(case.running, offsets)
    pace = max((rank.step_seconds or 0.0 for rank in case.running), default=0.0)
    if len(behind) > 1 and pace > 0:
        slowest = max(behind, key=lambda number: behind[number])
        others = sorted(lag for number, lag in behind.items() if number != slowest)
        lag, usual = behind[slowest], others[len(others) // 2]
        if lag - usual > max(LAG_SHARE * pace, MIN_LAG_SECONDS):
            rank = case.by_number[slowest]
            text = f"comes {1000 * lag:.0f} ms late to every collective of a step of {1000 * pace:.0f} ms"
            findings = [seen(rank, "collective", text)]
            return verdict_on(
                case, "straggler", [rank], 0.8, f"{named([rank])} slows all down: it {text}", findings
            )
    phase = next((word for word in map(places.phase, case.running) if word), "")
    sentence = f"slow phase: {phase}" if phase else "all ranks make progress"
    if case.running and all(case.leaving(rank) for rank in case.running):
        sentence = "its programs are over, and their processes end"
    if not case.running:
        sentence = "no rank has started yet" if case.live else "it has ended"
    return verdict_on(case, "healthy", [], 0.9, sentence)
