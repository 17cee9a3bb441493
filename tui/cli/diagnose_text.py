"""How a diagnosis is told to the person on call: the verdict first, then what it rests on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

from agent.diagnosis import places
from agent.diagnosis.evidence import Frame, Rank
from agent.diagnosis.verdict import Diagnosis, Finding, RankPart

from .. import formatting as fmt
from ..fleet.diagnosis import Report
from ..fleet.tracebacks import BOILERPLATE, Failure, folded
from . import output

BRIGHT, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"

MAX_FRAMES = 30
"""Of a stack; the outermost are left out first."""

MAX_RANKS = 64
"""In the table; those that are to blame come first."""

MAX_WORDS = 120
"""Characters of an error's message, where it is one of several."""

CULPRITS = 3
"""Whose stacks are shown."""


def show(report: Report, words: tuple[str, str]) -> None:
    """Print a report. `words` is the end of a log and its stream, for a failure without a traceback."""
    found = report.diagnosis
    mark = fmt.run_mark(report.state)
    say(f"{report.run}   attempt {report.attempt}   {mark.glyph} {mark.word}")
    say()
    say(f"{found.verdict}: {found.sentence}", bright=True)
    if since := _since(found, report):
        say(since)
    if found.evidence and not report.failed:
        say()
        rows = [(_who(finding), finding.signal, finding.text) for finding in found.evidence]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        for who, signal, text in rows:
            say(f"  {who:<{widths[0]}}  {signal:<{widths[1]}}  {text}")
    if report.failed and found.verdict != "healthy":
        _show_failures(report)
    if words[1]:
        say()
        say(f"the last words of {_stream(words[0])}:")
        for line in words[1].split("\n"):
            say(f"  | {line}")
    say()
    _show_table(report)
    if not report.failed:
        for rank in _to_blame(found):
            _show_stack(rank)


def say(text: str = "", *, bright: bool = False, dim: bool = False) -> None:
    """Print one line; what a host has written in it cannot reach the terminal as anything but text."""
    text = output.clean(text)
    if (bright or dim) and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        text = f"{BRIGHT if bright else DIM}{text}{PLAIN}"
    print(text)


def _since(found: Diagnosis, report: Report) -> str:
    words = [] if found.verdict == "healthy" else [f"{fmt.percent(100 * found.confidence)} sure"]
    if found.since_seconds >= 1:
        span = fmt.duration(found.since_seconds)
        words.insert(0, f"{span} ago" if report.failed else f"for {span}")
    return ", ".join(words)


def _who(finding: Finding) -> str:
    return "" if finding.rank is None else f"rank {finding.rank}"


def _stream(name: str) -> str:
    return "the launcher" if name == "launcher" else f"rank {name[4:]}"


# --- who failed ------------------------------------------------------------------------------------------


def _show_failures(report: Report) -> None:
    """The first failure in full, then the others in a line each."""
    failures = folded(report.failed)
    first = failures[0]
    say()
    also = _numbers(rank.rank for rank in first.ranks[1:])
    say(f"rank {first.ranks[0].rank}{_on(first.ranks[0])}: {_end(first.ranks[0])}")
    for line in first.lines:
        say(f"  {line.text}", bright=line.user_code is True, dim=line.user_code is False)
    if also:
        say(f"  the same on {also}")
    for failure in failures[1:]:
        say(f"{_ranks(failure)}{_mark(report, failure)}: {_end(failure.ranks[0])}{_last(failure)}")


def _mark(report: Report, failure: Failure) -> str:
    return " (a consequence)" if all(map(report.consequence, failure.ranks)) else ""


def _last(failure: Failure) -> str:
    """Where in the user's code it was."""
    at = next((line.text.strip() for line in reversed(failure.lines) if line.user_code), "")
    return f", {at}" if at.startswith("File ") else ""


def _end(rank: Rank) -> str:
    said = f"{rank.error_type}: {rank.error_message}".strip(": ").split("\n")[0]
    said = fmt.clip(said, MAX_WORDS)
    code = "lost" if rank.exit_code is None else fmt.exit_words(rank.exit_code)
    return f"{code}, {said}" if said else code


def _ranks(failure: Failure) -> str:
    rank = failure.ranks[0]
    return (
        f"rank {rank.rank}{_on(rank)}"
        if len(failure.ranks) == 1
        else _numbers(rank.rank for rank in failure.ranks)
    )


def _on(rank: Rank) -> str:
    return f" on {rank.host}" if rank.host else ""


def _numbers(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    if len(numbers) <= 1:
        return "".join(f"rank {number}" for number in numbers)
    shown = ", ".join(map(str, numbers[:8]))
    return f"ranks {shown}" + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


# --- all ranks -------------------------------------------------------------------------------------------


def _show_table(report: Report) -> None:
    found = report.diagnosis
    known = {rank.rank: rank for rank in report.evidence.ranks}
    blamed = set(found.culprits)
    parts = sorted(found.ranks, key=lambda rank: rank.rank not in blamed)
    stopped = report.state in ("stopped", "stopping")
    rows = [
        _row(part, known[part.rank], blamed=part.rank in blamed, stopped=stopped)
        for part in parts[:MAX_RANKS]
    ]
    output.print_table(("", "RANK", "HOST", "STEP", "STATE", "COLLECTIVE", "WHERE"), rows, right=(1, 3))
    if len(parts) > MAX_RANKS:
        say(f"and {len(parts) - MAX_RANKS} more: --json has all")


def _row(part: RankPart, rank: Rank, *, blamed: bool, stopped: bool) -> Sequence[str]:
    position = part.collective
    if rank.state == "running" and part.process_state:
        state = fmt.PROCESS_WORDS.get(part.process_state, part.process_state)
    else:
        state = fmt.rank_mark(rank.state, rank.exit_code, stopped=stopped).word
    frame = places.user_frame(part.stack) or (part.stack[0] if part.stack else None)
    where = places.spot(frame)
    if not where and frame is not None:
        where = f"{frame.file.rpartition('/')[2]}:{frame.line}"
    return (
        ">" if blamed else "",
        str(part.rank),
        part.host or fmt.NONE,
        fmt.NONE if part.step is None else fmt.count(part.step),
        state,
        fmt.NONE if position is None else f"{position.completed}/{position.enqueued} {position.name}",
        where or fmt.NONE,
    )


def _to_blame(found: Diagnosis) -> list[RankPart]:
    return [rank for rank in found.ranks if rank.rank in found.culprits and rank.stack][:CULPRITS]


def _show_stack(rank: RankPart) -> None:
    say()
    host = f" on {rank.host}" if rank.host else ""
    say(f"rank {rank.rank}{host}, the innermost call first; > is your own code")
    frames = [frame for frame in rank.stack if not BOILERPLATE.search(frame.file)]
    for frame in frames[:MAX_FRAMES]:
        _show_frame(frame)
    if len(frames) > MAX_FRAMES:
        say(f"    and {len(frames) - MAX_FRAMES} more", dim=True)


def _show_frame(frame: Frame) -> None:
    mark = ">" if frame.user_code else " "
    text = f"  {mark} {frame.file}:{frame.line} in {frame.function}"
    say(text, bright=frame.user_code, dim=not frame.user_code)
    if frame.source:
        say(f"        {frame.source}", bright=frame.user_code, dim=not frame.user_code)
