"""What a report comes to, in lines: the verdict, for how long and how sure it is, and what it rests on."""

from __future__ import annotations

from .. import diagnosis_facts, run_facts
from .. import formatting as fmt
from ..fleet.diagnosis import Report
from ..fleet.sanitize import printable
from .toned import Piece

MARKS = {
    "healthy": fmt.Mark("●", "healthy", fmt.GOOD),
    "straggler": fmt.Mark("◐", "straggler", fmt.DEGRADED),
    "unknown": fmt.Mark("?", "unknown", fmt.NOT_KNOWN),
}
"""Verdicts that are not trouble, or not known to be."""


def verdict(report: Report, since: float, width: int) -> list[list[Piece]]:
    """The verdict and its sentence; below it for how long, and how sure that is."""
    found = report.diagnosis
    mark = MARKS.get(found.verdict, fmt.Mark("▲", found.verdict, fmt.TROUBLE))
    if found.verdict == "healthy" and report.state not in ("starting", "running", "stalled"):
        mark = fmt.run_mark(report.state)  # it is over, and nothing about it was wrong
    head = f" {mark.glyph} {mark.word}   "
    tone = "" if mark.tone == fmt.GOOD else "strong"
    lines = wrapped([(head, mark.tone)], run_facts.shorter(found.sentence, report.run), width, 3, tone)
    words = []
    if since >= 1 and found.verdict != "healthy":
        words.append(f"{fmt.duration(since)} ago" if report.failed else f"for {fmt.duration(since)}")
    if found.verdict != "healthy":
        words.append(diagnosis_facts.sureness(found.confidence))
    if words:
        lines.append([(" " * len(head), ""), (" · ".join(words), "quiet")])
    return lines


def wrapped(head: list[Piece], text: str, width: int, most: int = 3, tone: str = "") -> list[list[Piece]]:
    """`text` behind `head`, in at most so many lines."""
    indent = sum(len(part) for part, _ in head)
    rows = run_facts.wrapped(text, width - indent - 1, most) or [""]
    return [[*(head if index == 0 else [(" " * indent, "")]), (row, tone)] for index, row in enumerate(rows)]


def evidence(report: Report, width: int, height: int) -> list[list[Piece]]:
    """What the verdict rests on, a line each, as many as there is room for."""
    findings = diagnosis_facts.findings(report.diagnosis)
    most = max(2, height // 5)
    widths = [max((len(finding[column]) for finding in findings), default=0) for column in (0, 1)]
    lines: list[list[Piece]] = []
    for who, signal, text in findings:
        head: list[Piece] = [
            (f"   {who:<{widths[0]}}  ", ""),
            (f"{signal:<{widths[1]}}  ", "quiet"),
        ]
        lines += wrapped(head, printable(run_facts.shorter(text, report.run)), width, 2)
    if len(lines) > most:
        hidden = len(lines) - most + 1
        lines = [*lines[: most - 1], [(f"   and {hidden} more lines: b has all of it", "quiet")]]
    return lines
