"""A report of a check as lines of pieces: host by host what is in the way, what may be, and what is good."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from .. import formatting as fmt
from ..fleet.findings import BLOCKER, OK, WARNING, Finding
from ..fleet.findings_group import best, way_words
from ..fleet.matrix import Matrix
from ..fleet.preflight import Report
from ..fleet.sanitize import printable
from ..formatting import Mark
from .toned import Piece, cells

MARKS = {
    BLOCKER: Mark("✕", "blocker", fmt.TROUBLE),
    WARNING: Mark("◐", "warning", fmt.DEGRADED),
    OK: Mark("●", "ok", fmt.GOOD),
}

WIDEST = 120
"""Cells of a line of text at most: longer ones are hard to read, also where there is room."""

TOGETHER = "together"
"""What the group of findings is called that concern several hosts."""

CORNER = "from \\ to"

Lines = list[list[Piece]]


def lines(report: Report, width: int) -> Lines:
    """All of the report for a widget of this width; what concerns all hosts comes first, the matrix last."""
    shown: Lines = []
    check = max((cells(finding.check) for finding in report.findings), default=0)
    for name in ("", *report.names):
        found = report.of(name)
        if found:
            shown += [[]] if shown else []
            shown.append([(f" {name or TOGETHER}", "strong"), ("   ", ""), *counts(found)])
            for finding in found:
                shown += _finding(finding, check, width)
    if report.matrix is not None:
        shown += [[], *_matrix(report.matrix, width)]
    return shown


def counts(found: Sequence[Finding]) -> list[Piece]:
    """How many are not good: `1 blocker · 2 warnings`, or `ok`."""
    pieces: list[Piece] = []
    for level in (BLOCKER, WARNING):
        number = sum(finding.level == level for finding in found)
        if number:
            mark = MARKS[level]
            pieces += [(" · ", "quiet")] if pieces else []
            pieces.append((fmt.plural(number, mark.word), mark.tone))
    return pieces or [("ok", fmt.GOOD)]


def _finding(finding: Finding, check: int, width: int) -> Iterator[list[Piece]]:
    mark = MARKS[finding.level]
    begin: list[Piece] = [
        (f"   {mark.glyph} {mark.word:<8}", mark.tone),
        (f" {finding.check:<{check}}  ", "quiet" if finding.level == OK else ""),
    ]
    indent = sum(cells(text) for text, _ in begin)
    room = max(20, min(WIDEST, width - indent - 2))
    tone = "quiet" if finding.level == OK else ""
    for text in _wrapped(finding.text, room):
        yield [*begin, (text, tone)]
        begin = [(" " * indent, "")]
    for number, text in enumerate(_wrapped(finding.fix, room - 2)):
        yield [(" " * indent, ""), ("  " if number else "→ ", "key"), (text, "quiet")]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(printable(text), width, break_on_hyphens=False)


def _matrix(matrix: Matrix, width: int) -> Iterator[list[Piece]]:
    """Who reaches whom: a table where it fits, else a line for each way."""
    names = [host.name for host in matrix.hosts]
    ways = {(a, b): best(matrix, a, b) for a in names for b in names if a != b}
    words = {pair: way_words(way) for pair, way in ways.items()}
    tones = {pair: "" if way is not None and way.ok else fmt.TROUBLE for pair, way in ways.items()}
    first = max(len(CORNER), *(cells(name) for name in names))
    column = max(cells(text) for text in (*names, *words.values()))
    if 3 + first + len(names) * (column + 3) <= width:
        heads = "".join(f"   {fmt.pad(name, column, right=True)}" for name in names)
        yield [(f"   {fmt.pad(CORNER, first)}{heads}", "head")]
        for source in names:
            yield [
                (f"   {fmt.pad(source, first)}", ""),
                *(
                    (f"   {fmt.pad(words.get((source, target), fmt.NONE), column, right=True)}",
                     tones.get((source, target), "quiet"))
                    for target in names
                ),
            ]  # fmt: skip
        return
    for (source, target), text in words.items():
        yield [(f"   {source} → {target}   ", ""), (text, tones[source, target])]
