"""Why a run gets no further, or why it ended: all of its hosts are asked at once, and judged together.

Each host knows only its own ranks. Their evidence is put together here, with the names that the hosts have
here, what their clocks are ahead of ours, and what is last known of those that do not answer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent import wire
from agent.diagnosis import Diagnosis, crash, diagnose
from agent.diagnosis.evidence import Evidence, Frame, Host, Rank
from agent.diagnosis.verdict import Finding

from . import attempt_files, clocks, host_evidence
from .attempt_files import Layout
from .errors import EncampError, HostError, RequestRefused
from .members import Forgotten, Member, OtherMachine
from .run_watch import CONSEQUENCES
from .sanitize import printable
from .session import Session
from .store import RunView

ASK_SECONDS = 20.0
"""How long a host may take: it looks at its ranks twice, a second apart, and waits for those that hang."""

PINGS = 3


@dataclass(frozen=True)
class Part:
    """What one host has told of its ranks, `own`; `problem` says why it has told nothing."""

    member: Member
    own: range
    evidence: Evidence | None = None
    alarm: Diagnosis | None = None
    """What it has raised the alarm for by itself, if it has."""
    notes: tuple[str, ...] = ()
    problem: EncampError | None = None
    asked_seconds: float = 0.0
    """How long it was waited for."""


@dataclass(frozen=True)
class Report:
    """The verdict on an attempt and all that it rests on. `notes` are what could not be asked or believed."""

    run: str
    attempt: int
    state: str
    reason: str
    diagnosis: Diagnosis
    evidence: Evidence
    parts: tuple[Part, ...]
    notes: tuple[str, ...]

    @property
    def failed(self) -> list[Rank]:
        """The ranks that ended as they should not, the first to fail in front, consequences behind."""
        return crash.failed(self.evidence)

    def consequence(self, rank: Rank) -> bool:
        """Whether a rank that failed did so because another one had."""
        return rank.rank not in self.diagnosis.culprits and (
            crash.is_consequence(rank) or rank.exit_code in CONSEQUENCES
        )


async def examine(run: RunView, sessions: Sequence[Session], attempt: int | None = None) -> Report:
    """Ask all hosts of the newest attempt, or of that one, and say what is wrong.

    `sessions` are those that there are; each should have connected, or failed to. Raises RequestRefused for
    an attempt that no host has, HostError when no host can be asked.
    """
    number = run.attempt if attempt is None else attempt
    current = number == run.attempt
    if current:
        layout = attempt_files.newest(run, sessions)
    else:
        layout = await attempt_files.earlier(run.id, number, sessions)
    state, reason = run.standing() if current else await _state(run.id, number, layout)
    tasks = [_ask(member, layout.own(rank), run.id, number) for rank, member in enumerate(layout.members)]
    parts = tuple(await asyncio.gather(*tasks))
    if not any(part.evidence for part in parts):
        problem = next(part.problem for part in parts if part.problem is not None)
        raise problem
    if current:
        state, reason = run.standing()  # it may have ended meanwhile
    evidence, notes = join(run, number, layout, parts, time.time())
    found = judged(diagnose(evidence), evidence, state, reason)
    return Report(run.id, number, state, printable(reason), found, evidence, parts, tuple(notes))


def document(report: Report) -> dict[str, Any]:
    """The report as `encamp diagnose --json` prints it."""
    found = report.diagnosis
    return {
        "run": report.run,
        "attempt": report.attempt,
        "state": report.state,
        "verdict": found.verdict,
        "culprits": list(found.culprits),
        "confidence": round(found.confidence, 2),
        "sentence": found.sentence,
        "since_seconds": round(found.since_seconds, 1),
        "evidence": [dataclasses.asdict(finding) for finding in found.evidence],
        "ranks": [
            {
                "rank": rank.rank,
                "host": rank.host,
                "step": rank.step,
                "collective": None if rank.collective is None else dataclasses.asdict(rank.collective),
                "process_state": rank.process_state or None,
                "stack": [_frame(frame) for frame in rank.stack],
            }
            for rank in found.ranks
        ],
    }


def join(
    run: RunView, attempt: int, layout: Layout, parts: Sequence[Part], now: float, *, silent: bool = True
) -> tuple[Evidence, list[str]]:
    """The evidence of all hosts as one, and notes on what is missing. `now` is our wall clock.

    With `silent` a host of the newest attempt that tells nothing is in it, as it was last seen.
    """
    current = silent and attempt == run.attempt
    told = [part.evidence for part in parts if part.evidence is not None]
    ranks: list[Rank] = []
    hosts: list[Host] = []
    notes: list[str] = []
    for part in parts:
        notes += part.notes
        if part.evidence is not None:
            ranks += part.evidence.ranks
            hosts += part.evidence.hosts
            continue
        problem = part.problem.message if part.problem is not None else "it says nothing"
        notes.append(f"{part.member.name} is not in it: {printable(problem)}")
        if current:
            hosts.append(_silent_host(run, part, now))
            ranks += _last_seen(run, part)
    evidence = Evidence(
        run=run.id,
        attempt=attempt,
        time=now,
        world_size=layout.world_size,
        window_seconds=max(part.window_seconds for part in told),
        ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)),
        hosts=tuple(hosts),
        allowed_seconds=max(part.allowed_seconds for part in told),
    )
    return evidence, notes


def judged(found: Diagnosis, evidence: Evidence, state: str, reason: str) -> Diagnosis:
    """The verdict in the light of what became of the run: it was stopped, or failed and no rank says why."""
    reason = printable(reason)
    failed = crash.failed(evidence)
    if state in ("stopped", "stopping") and all(
        crash.is_consequence(rank) or rank.exit_code in CONSEQUENCES or rank.state == "lost"
        for rank in failed
    ):
        words = "it was stopped" if state == "stopped" else "it is being stopped"
        sentence = f"{words}: {reason}" if reason else words
        return dataclasses.replace(
            found, verdict="healthy", culprits=(), confidence=1.0, sentence=sentence, evidence=()
        )
    if state == "failed" and found.verdict == "healthy":
        said = Finding(None, "exit", reason or "its launcher says nothing of a reason")
        return dataclasses.replace(
            found,
            verdict="unknown",
            confidence=0.3,
            sentence=f"it failed, and no rank says why: {reason}" if reason else "it failed without a word",
            evidence=(said,),
        )
    first = failed[0] if failed else None
    if first is not None and first.ended is not None and found.culprits == (first.rank,):
        offset = next((host.clock_offset for host in evidence.hosts if host.name == first.host), 0.0)
        return dataclasses.replace(found, since_seconds=max(0.0, evidence.time - first.ended + offset))
    return found


async def _ask(member: Member, own: range, run: str, attempt: int) -> Part:
    """Ask one host."""
    session = member.session
    if session is None or member.problem is not None:
        return Part(member, own, problem=member.problem or HostError(f"{member.name} is not connected."))
    began = time.monotonic()
    clock = asyncio.ensure_future(clocks.against_ours(session, PINGS))
    try:
        reply = await session.request("evidence", {"run": run, "attempt": attempt}, timeout=ASK_SECONDS)
        await asyncio.wait([clock], timeout=ASK_SECONDS)
        measured = clock.result() if clock.done() else None
        offset = measured.offset if measured is not None else session.view.clock_offset
        found = host_evidence.read(reply, run, attempt, member.name, own, offset)
    except wire.WireError as error:
        problem: EncampError = HostError(f"its evidence makes no sense: {error}.")
    except RequestRefused as error:
        problem = error
        if error.code == "unknown-method":
            words = "its agent is of an older encamp, which cannot say what its ranks do."
            problem = RequestRefused(error.code, words)  # it answers: nobody calls it unreachable
    except HostError as error:
        problem = error
    else:
        evidence, alarm, notes = found
        return Part(member, own, evidence, alarm, tuple(notes))
    finally:
        clock.cancel()
    return Part(member, own, problem=problem, asked_seconds=time.monotonic() - began)


async def _state(run: str, attempt: int, layout: Layout) -> tuple[str, str]:
    """How an older attempt ended: as the first of its hosts that failed says, else the first that says."""
    ends: list[tuple[str, str]] = []
    for member in layout.members:
        if member.session is None or member.problem is not None:
            continue
        try:
            answer = await member.session.request("run", {"run": run})
        except EncampError:
            continue
        entries = answer.get("attempts")
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and entry.get("attempt") == attempt:
                state = entry.get("state")
                if state in wire.RUN_STATES:
                    ends.append((state, str(entry.get("reason") or "")[:2000]))
    return next((end for end in ends if end[0] == "failed"), ends[0] if ends else ("unreachable", ""))


def _silent_host(run: RunView, part: Part, now: float) -> Host:
    """What is said of a host that has told nothing. It counts as reachable when that changes nothing."""
    name, session = part.member.name, part.member.session
    if isinstance(part.problem, Forgotten | OtherMachine | RequestRefused) or _over(run, name):
        return Host(name, True)
    silent = part.asked_seconds
    if session is not None and not session.live:
        silent = session.view.age() or max(0.0, now - session.view.since)
    return Host(name, False, silent_seconds=silent)


def _over(run: RunView, host: str) -> bool:
    """Whether all of a host's ranks were over when it was last heard of."""
    return any(view.name == host and not node.live for view, node in run.parts)


def _last_seen(run: RunView, part: Part) -> list[Rank]:
    """The ranks of such a host as they were when it was last heard of."""
    name = part.member.name
    if isinstance(part.problem, Forgotten | OtherMachine):
        return [Rank(number, name, "lost") for number in part.own]
    seen = run.ranks
    found = []
    for number in part.own:
        view = seen.get(number)
        if view is not None and view.sample.state in wire.RANK_STATES:
            sample = view.sample
            found.append(
                Rank(
                    number,
                    name,
                    sample.state,
                    pid=sample.pid,
                    exit_code=sample.exit_code,
                    process_state=printable(sample.process_state or "")[:1],
                    rss_bytes=sample.rss_bytes,
                    step=sample.step,
                    step_seconds=sample.step_seconds,
                )
            )
        elif not _over(run, name):
            found.append(Rank(number, name, "running"))
    return found


def _frame(frame: Frame) -> dict[str, Any]:
    return {
        "file": frame.file,
        "line": frame.line,
        "function": frame.function,
        "user_code": frame.user_code,
    }
