"""From evidence to a verdict: the rules in the order in which they are asked, the surest first."""

from __future__ import annotations

import dataclasses
from typing import Callable, Optional, Set, Tuple

from . import ends, health, places, ras, stalls, waiting
from .case import Case
from .evidence import Evidence, Group, Rank
from .verdict import Diagnosis, Finding, Position, RankPart

Rule = Callable[[Case], Optional[Diagnosis]]

RULES: Tuple[Rule, ...] = (
    ends.host_unreachable, ends.ended, ends.zombie, ends.gpu_fault, health.not_a_number, health.going_on,
    stalls.stopped, stalls.in_kernel, stalls.mismatched, stalls.waited_for, stalls.all_wait, stalls.alone,
)  # fmt: skip


def diagnose(evidence: Evidence) -> Diagnosis:
    """Say what is wrong with the attempt that `evidence` shows, and with which ranks."""
    case = Case(evidence)
    for rule in RULES:
        found = rule(case)
        if found is not None:
            more = _of_nccl(evidence) if found.alarming else ()
            waited_in = {wait.group for wait in waiting.waits(evidence.ranks) if wait.others}
            ranks = tuple(_part(rank, waited_in) for rank in evidence.ranks)
            return dataclasses.replace(found, evidence=(*found.evidence, *more), ranks=ranks)
    raise AssertionError("the last rule always has an answer")


def _of_nccl(evidence: Evidence) -> Tuple[Finding, ...]:
    """What NCCL says itself: it says the same on all hosts."""
    reports = [host.nccl_ras for host in evidence.hosts if host.nccl_ras]
    if not reports:
        return ()
    said = next(filter(None, map(ras.trouble, reports)), "it reports no error")
    return (Finding(None, "nccl-ras", f"NCCL: {said}"),)


def _part(rank: Rank, waited_in: Set[str]) -> RankPart:
    def weight(group: Group) -> Tuple[bool, bool, float]:
        pending = group.completed < group.enqueued or waiting.pending_of(group) is not None
        return pending, group.name in waited_in, group.recent[-1].created if group.recent else 0.0

    # Of its groups the one in which it waits, else one in which others wait, else where it called last.
    group = max(rank.groups, key=weight, default=None)
    position = None
    if group is not None:
        entry = waiting.pending_of(group) or (group.recent[-1] if group.recent else None)
        position = Position(group.enqueued, group.completed, entry.name if entry else "")
    stack = places.main_stack(rank)
    return RankPart(rank.rank, rank.host, rank.step, position, rank.process_state, stack)
