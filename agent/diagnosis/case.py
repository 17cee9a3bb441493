"""The evidence of one attempt, seen as its rules need it."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Set

from . import places, waiting
from .evidence import Evidence, Frame, Rank
from .verdict import Diagnosis, Finding

START_SECONDS = 30.0
"""How long a rank may go without progress before this run has a rhythm."""

LEAVING_SECONDS = 60.0
"""How long the process of a rank may live on when its program is over."""

BUSY_SECONDS = 15.0
"""How long one that computes may be in one and the same place that does not tell what it is."""

PHASE_SECONDS = 600.0
"""How long it may be in a phase that is known to be long, or move about without a step."""

WAITED_SECONDS, IDLE_WAITED_SECONDS = 180.0, 60.0
"""How long it may move about while others wait for it, and how long when it does little but talk."""

PATIENT_RHYTHMS = 12.0
"""So many times what the rhythm allows others wait for it in any case."""

TOGETHER = 0.8
"""Where one is late, so are those that have been silent for this part of what is allowed."""

WORKING_SHARE = 0.5
"""Of a core: a rank and its children that together use more do something."""

MOVED_BYTES = 64 * 1024
"""Bytes read and written in a look: less is no sign of work."""


class Case:
    """One attempt. `stalled` are the live ranks that have made no progress for longer than allowed."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.allowed = evidence.allowed_seconds or START_SECONDS
        self.live = [rank for rank in evidence.ranks if rank.state in ("starting", "running")]
        self.running = [rank for rank in self.live if rank.state == "running"]
        silent = [rank.step_age or 0.0 for rank in self.running]
        least = TOGETHER * self.allowed if any(age > self.allowed for age in silent) else self.allowed
        self.hosts = {host.name: host for host in evidence.hosts}
        self.stalled = [
            rank for rank, age in zip(self.running, silent) if age > least and not self.leaving(rank)
        ]
        self.waits = waiting.waits(self.running)
        self.by_number: Dict[int, Rank] = {rank.rank: rank for rank in evidence.ranks}

    def offset(self, rank: Rank) -> float:
        """Seconds by which the clock of the rank's host is ahead of the viewer's."""
        host = self.hosts.get(rank.host)
        return 0.0 if host is None else host.clock_offset

    def leaving(self, rank: Rank) -> bool:
        """Whether its program is over, and only its process is not: on a busy machine that takes long."""
        ended = rank.ended
        return ended is not None and self.evidence.time + self.offset(rank) - ended < LEAVING_SECONDS

    def since(self, ranks: Sequence[Rank]) -> float:
        """How long all of `ranks` have made no progress, in seconds."""
        return min((rank.step_age for rank in ranks if rank.step_age is not None), default=0.0)

    def waiting(self) -> Set[int]:
        """The ranks that wait in a collective, by the flight record or, without one, by their stacks."""
        return {wait.rank for wait in self.waits} if self.recorded() else waiting.by_stacks(self.running)[0]

    def recorded(self) -> bool:
        """Whether every running rank keeps a flight record that says something."""
        return bool(self.running) and all(rank.recorded for rank in self.running) and self._any_group()

    def _any_group(self) -> bool:
        return any(rank.groups for rank in self.running)

    def held(self) -> List[Rank]:
        """The stalled ranks that wait for others, or may: not those that go on alone, as to save."""
        there = self.waiting() | waiting.by_stacks(self.running)[0]
        return [
            rank
            for rank in self.stalled
            if rank.rank in there or not (places.main_stack(rank) or self.busy(rank, alone=True))
        ]

    def blamed(self) -> List[Rank]:
        """The ranks that others wait for."""
        if self.recorded():
            numbers = waiting.to_blame(self.waits)
        else:
            waits, elsewhere = waiting.by_stacks(self.running)
            numbers = elsewhere if waits else set()
        return [self.by_number[number] for number in sorted(numbers) if number in self.by_number]

    def missed(self, culprits: Sequence[Rank]) -> str:
        """The collective in which others wait for `culprits`, for people; empty where it is not known."""
        numbers = {rank.rank for rank in culprits}
        return next((wait.collective for wait in self.waits if wait.others & numbers), "")

    def busy(self, rank: Rank, alone: bool = False) -> bool:
        """Whether it works, and may go on for now: it moves about, or is in a phase that takes long.

        `alone`: nobody waits for it, so that it may compute in one place for long.
        """
        age = rank.step_age or 0.0
        stack = places.main_stack(rank)
        moves = bool(stack and rank.earlier and _place(stack) != _place(rank.earlier))
        helped = sum(child.cpu_share or 0.0 for child in rank.children) > WORKING_SHARE
        computes = (
            (rank.main_cpu_share or 0.0) > places.IDLE_SHARE
            or (rank.cpu_share or 0.0) > WORKING_SHARE
            or (rank.runnable and not _sleeps(stack))  # it would, and an overloaded machine does not let it
            or helped
        )
        transfers = (rank.io_bytes or 0) > MOVED_BYTES or rank.log_bytes > 0
        if places.phase(rank) and not places.in_lock(rank, stack) and not places.in_loader(stack):
            return age <= PHASE_SECONDS
        if alone and (moves or transfers or (computes and not places.in_collective(stack))):
            # Of a program that shows nothing that could be counted it is not known what is long.
            return age <= PHASE_SECONDS or not self.evidence.allowed_seconds
        if helped and not places.in_loader(stack):  # it waits for processes that work for it
            return age <= PHASE_SECONDS
        if moves or transfers:
            works = computes or (rank.io_bytes or 0) > MOVED_BYTES
            limit = WAITED_SECONDS if works else IDLE_WAITED_SECONDS
            return age <= max(limit, PATIENT_RHYTHMS * self.allowed)
        return computes and age <= max(BUSY_SECONDS, 2 * self.allowed)


def _place(stack: Sequence[object]) -> object:
    """What tells two looks apart: the innermost function, not its line; a loop of two lines stays in it."""
    top = stack[0]
    return (getattr(top, "file", ""), getattr(top, "function", ""), len(stack))


def _sleeps(stack: Sequence[Frame]) -> bool:
    return bool(stack and places.SLEEP_LINE.search(stack[0].source))


def named(ranks: Sequence[Rank]) -> str:
    """`rank 1 on b` or `ranks 0, 2 and 3` for people."""
    if len(ranks) == 1:
        where = f" on {ranks[0].host}" if ranks[0].host else ""
        return f"rank {ranks[0].rank}{where}"
    return "ranks " + numbers([rank.rank for rank in ranks])


def is_(ranks: Sequence[Rank]) -> str:
    """`rank 1 on b is` or `ranks 0 and 1 are`."""
    return f"{named(ranks)} {'is' if len(ranks) == 1 else 'are'}"


def numbers(values: Sequence[int]) -> str:
    """`0, 2 and 3`; of many the first and how many more."""
    words = [str(value) for value in values]
    if len(words) > 6:
        return f"{', '.join(words[:5])} and {len(words) - 5} more"
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def seen(rank: Optional[Rank], signal: str, text: str) -> Finding:
    """A finding about `rank`."""
    return Finding(None if rank is None else rank.rank, signal, text)


def verdict_on(
    case: Case,
    verdict: str,
    culprits: Sequence[Rank],
    confidence: float,
    sentence: str,
    findings: Sequence[Finding] = (),
) -> Diagnosis:
    """A diagnosis that is complete but for the ranks' parts."""
    return Diagnosis(
        verdict=verdict,
        sentence=sentence,
        culprits=tuple(rank.rank for rank in culprits),
        confidence=confidence,
        since_seconds=case.since(culprits or case.running),
        evidence=tuple(findings),
    )
