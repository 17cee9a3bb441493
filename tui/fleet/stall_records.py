"""What a run has been through: its attempts, and the stalls whose evidence its hosts have kept.

Each host writes down its own alarms, `stall-1.json` and so on in the attempt's folder, and tells of them in
the order of its events. Here the alarms that several hosts called together are one page, and a page is read
back as the report that it would have been then.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from agent import wire
from agent.diagnosis import Diagnosis, diagnose

from . import attempt_files, diagnosis, host_evidence
from .diagnosis import Part, Report
from .errors import EncampError, HostError
from .host_files import HostFiles
from .members import Member, leftovers, members
from .parallel import everywhere
from .session import Session
from .store import RunView
from .timeline import ALIKE_SECONDS, events

KEPT = 20
"""Alarms of an attempt whose evidence its hosts keep."""


@dataclass(frozen=True, slots=True)
class Page:
    """One thing to look at: a stall, or an attempt as it is now or has ended.

    `time` is by our clock, when a stall was called; None for an attempt. `records` are the numbers of its
    files, by the name that each host's session has.
    """

    attempt: int
    time: float | None = None
    records: tuple[tuple[str, int], ...] = ()


async def pages(run: RunView, sessions: Sequence[Session]) -> tuple[Page, ...]:
    """All there is to look at, oldest first; the last is how the newest attempt is now.

    A host that does not answer has no stalls to tell of.
    """
    asked = [each.session for each in members(run, sessions) if each.session is not None and not each.problem]
    asked += [session for session in leftovers(run, sessions) if session not in asked]

    async def ask(session: Session) -> list[wire.Event]:
        return events(session, run.id, await session.request("events", {"run": run.id}))

    stalls: list[Page] = []
    attempts = {run.attempt}
    for name, told in (await everywhere(asked, ask)).done.items():
        offset = next(session.view.clock_offset for session in asked if session.name == name)
        numbers: dict[int, int] = {}
        for event in told:
            if not 0 < event.attempt <= run.attempt:
                continue
            attempts.add(event.attempt)
            if event.name == "stalled":
                number = numbers[event.attempt] = numbers.get(event.attempt, 0) + 1
                if number <= KEPT:
                    stalls.append(Page(event.attempt, event.time - offset, ((name, number),)))
    found: list[Page] = []
    for attempt in sorted(attempts):
        found += _together([page for page in stalls if page.attempt == attempt])
        found.append(Page(attempt))
    return tuple(found)


def _together(stalls: Sequence[Page]) -> list[Page]:
    """In order; those that several hosts called together are one."""
    merged: list[Page] = []
    for page in sorted(stalls, key=lambda page: page.time or 0.0):
        last = merged[-1] if merged else None
        hosts = {name for name, _ in last.records} if last is not None else set()
        if last is None or page.records[0][0] in hosts or (page.time or 0) - (last.time or 0) > ALIKE_SECONDS:
            merged.append(page)
        else:
            merged[-1] = dataclasses.replace(last, records=last.records + page.records)
    return merged


async def read(run: RunView, sessions: Sequence[Session], page: Page) -> Report:
    """The page as a report. Raises EncampError when no host has it any more, or none can be asked."""
    if page.time is None:
        return await diagnosis.examine(run, sessions, page.attempt)
    if page.attempt == run.attempt:
        layout = attempt_files.newest(run, sessions)
    else:
        layout = await attempt_files.earlier(run.id, page.attempt, sessions)
    numbers = dict(page.records)
    tasks = [
        _part(run.id, page, member, layout.own(rank), numbers) for rank, member in enumerate(layout.members)
    ]
    parts = tuple(await asyncio.gather(*tasks))
    told = [part for part in parts if part.evidence is not None]
    if not told:
        raise next(part.problem for part in parts if part.problem is not None)
    evidence, notes = diagnosis.join(run, page.attempt, layout, parts, page.time, silent=False)
    found = diagnose(evidence) if len(told) == len(parts) else None
    if found is None or not found.alarming:
        alarms = [part.alarm for part in told if part.alarm is not None]
        nothing = Diagnosis("unknown", "its hosts wrote down what they saw, and not what they made of it")
        found = max(alarms, key=lambda alarm: (bool(alarm.culprits), alarm.confidence), default=nothing)
    return Report(run.id, page.attempt, "stalled", "", found, evidence, parts, tuple(notes))


async def _part(run: str, page: Page, member: Member, own: range, numbers: dict[str, int]) -> Part:
    """What one host wrote down."""
    session = member.session
    fails = functools.partial(Part, member, own)
    if session is None or member.problem is not None:
        return fails(problem=member.problem or HostError(f"{member.name} is not connected."))
    number = numbers.get(session.name)
    if number is None:
        return fails(problem=EncampError("it called no stall then."))
    try:
        kept = await attempt_files.read_json(
            HostFiles(session, run), f"attempts/{page.attempt}/stall-{number}.json"
        )
        reply = {"evidence": kept.get("evidence"), "alarm": kept.get("diagnosis")}
        evidence, alarm, notes = host_evidence.read(
            reply, run, page.attempt, member.name, own, session.view.clock_offset
        )
    except wire.WireError as error:
        return fails(problem=HostError(f"its evidence makes no sense: {error}."))
    except EncampError as error:
        return fails(problem=error)
    return fails(evidence=evidence, alarm=alarm, notes=tuple(notes))
