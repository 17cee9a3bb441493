"""What happened to a run: the events of all attempts from all of its hosts, in the order of our clock.

Each host tells of its own ranks by its own clock, and the same action is an event on each of them. Here they
become one list: what several hosts tell alike is told once, and a stall knows how long it was.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent import wire

from .errors import EncampError
from .members import leftovers, members
from .parallel import everywhere
from .sanitize import printable
from .session import Session
from .store import RunView

ALIKE_SECONDS = 10.0
"""Within these the same event on several hosts is one."""

MAX_CHARACTERS = 2000

NODE = re.compile(r", node \d+ of .*\Z")
"""What only one host says of a launch: which of them it is."""

NAMES_A_RANK = re.compile(r"\A[a-z-]+: rank \d")

ENDS = ("resumed", "finished", "failed", "stopped", "stop")
"""Events after which a stall is over."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened. `time` is ours, in seconds since the epoch."""

    time: float
    attempt: int
    name: str
    actor: str
    text: str
    hosts: tuple[str, ...]
    until: float | None = None
    """When a stall was over; None while nothing tells of its end."""
    times: int = 1
    """How often in a row; `time` and `text` are those of the last."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """All that is known, oldest first; `notes` are hosts that did not tell, in words."""

    moments: tuple[Moment, ...]
    notes: tuple[str, ...]


async def timeline(run: RunView, sessions: Sequence[Session]) -> Timeline:
    """Ask all hosts of a run at once. Hosts that do not answer are in the notes."""
    found = members(run, sessions)
    names: dict[str, str] = {}
    asked: list[Session] = []
    notes: list[str] = []
    for member in found:
        if member.session is None or member.problem is not None:
            said = member.problem.message if member.problem is not None else "it is not connected"
            notes.append(f"{member.name}: {printable(said)}")
        else:
            asked.append(member.session)
            names[member.session.name] = member.name
    asked += [session for session in leftovers(run, sessions) if session.name not in names]

    async def ask(session: Session) -> list[wire.Event]:
        answer = await session.request("events", {"run": run.id})
        return events(session, run.id, answer)

    outcome = await everywhere(asked, ask)
    notes += [f"{names.get(name, name)}: {error.message}" for name, error in outcome.failed.items()]
    told: list[Moment] = []
    for session in asked:
        name = names.get(session.name, session.name)
        told += _of_host(outcome.done.get(session.name, ()), name, session.view.clock_offset)
    told += saves(run)
    return Timeline(tuple(_together(told)), tuple(notes))


def saves(run: RunView) -> list[Moment]:
    """The checkpoints of the newest attempt, as far as its records are known here."""
    offset = run.host.clock_offset
    found: list[Moment] = []
    for record in run.progress:
        at, step = record.get("time"), record.get("step")
        if record.get("phase") != "save" or isinstance(at, bool) or not isinstance(at, int | float):
            continue
        text = f"at step {step}" if isinstance(step, int) else ""
        found.append(Moment(at - offset, run.attempt, "saved", "", text, ()))
    return found


def events(session: Session, run: str, answer: Mapping[str, Any]) -> list[wire.Event]:
    """The events in an answer. Raises EncampError when it makes no sense."""
    told = answer.get("events")
    if not isinstance(told, list):
        raise EncampError(f"{session.name} tells of {run} what makes no sense.")
    found = []
    for event in told[: wire.MAX_ITEMS]:
        try:
            found.append(wire.from_json(wire.Event, event))
        except wire.WireError:
            continue  # an agent that is newer may know of more
    return found


def _of_host(events: Iterable[wire.Event], host: str, offset: float) -> list[Moment]:
    """What one host tells, by our clock, with the ends of its stalls."""
    moments: list[Moment] = []
    stalled: int | None = None
    for event in events:
        at = event.time - offset
        if stalled is not None and _same_alarm(moments[stalled], event):
            continue  # called again by an agent that took over from an older one
        over = event.name in ENDS or (stalled is not None and event.attempt != moments[stalled].attempt)
        if stalled is not None and (over or event.name == "stalled"):
            moments[stalled] = dataclasses.replace(moments[stalled], until=at)
            stalled = None
        text = printable(event.text[:MAX_CHARACTERS])
        if event.name == "stalled":
            stalled = len(moments)
        name, actor = printable(event.name[:40]), printable(event.actor[:80])
        moments.append(Moment(at, event.attempt, name, actor, text, (host,)))
    return moments


def _same_alarm(moment: Moment, event: wire.Event) -> bool:
    return (
        event.name == "stalled" and event.attempt == moment.attempt and printable(event.text) == moment.text
    )


def _together(moments: Iterable[Moment]) -> list[Moment]:
    """In order, attempt by attempt; what several hosts tell alike once, saves in a row as one."""
    merged: list[Moment] = []
    for moment in sorted(moments, key=lambda moment: (moment.attempt, moment.time)):
        alike = [index for index, other in enumerate(merged) if _alike(moment, other)]
        if alike:
            merged[alike[-1]] = _joined(merged[alike[-1]], moment)
        elif merged and moment.name == merged[-1].name == "saved" and moment.attempt == merged[-1].attempt:
            merged[-1] = dataclasses.replace(moment, times=merged[-1].times + 1)
        else:
            merged.append(moment)
    return merged


def _alike(moment: Moment, other: Moment) -> bool:
    """Whether two hosts tell of the same: whatever their words are."""
    return (
        (moment.attempt, moment.name, moment.actor) == (other.attempt, other.name, other.actor)
        and moment.time - other.time <= ALIKE_SECONDS
        and not set(moment.hosts) & set(other.hosts)
        and bool(moment.hosts)
    )


def _joined(first: Moment, moment: Moment) -> Moment:
    """The same from one more host. Of two alarms the one that names a rank says more."""
    until = max((at for at in (first.until, moment.until) if at is not None), default=None)
    texts = (NODE.sub("", first.text), NODE.sub("", moment.text))
    text = next((text for text in texts if NAMES_A_RANK.search(text)), texts[0] or texts[1])
    return dataclasses.replace(first, hosts=(*first.hosts, *moment.hosts), until=until, text=text)
