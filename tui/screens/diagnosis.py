"""Why a run gets no further, or why it ended: the verdict, what it rests on, each rank's stack and log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widget import Widget

from .. import diagnosis_facts, run_facts
from .. import formatting as fmt
from ..examining import Examination
from ..fleet import evidence_bundle
from ..fleet.diagnosis import Report
from ..fleet.errors import EncampError
from ..fleet.evidence_bundle import Written
from ..fleet.sanitize import printable
from ..fleet.store import RunView
from ..widgets.lines import Lines
from ..widgets.log_pane import LogPane
from ..widgets.rank_table import RankTable
from ..widgets.run_banner import TALL
from ..widgets.stack_view import StackView
from ..widgets.toned import Piece
from .base import BaseScreen

WIDE = 100
"""Cells of a line on which a stack and a log find room side by side."""

MARKS = {
    "healthy": fmt.Mark("●", "healthy", fmt.GOOD),
    "straggler": fmt.Mark("◐", "straggler", fmt.DEGRADED),
    "unknown": fmt.Mark("?", "unknown", fmt.NOT_KNOWN),
}
"""Verdicts that are not trouble, or not known to be."""


class DiagnosisScreen(BaseScreen):
    """Looks at all ranks of a run when it is opened, and again and again while the run stalls."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "again", "look again", id="diagnosis.again", tooltip="look at all ranks again"),
        Binding(
            "b", "bundle", "bundle", id="diagnosis.bundle", tooltip="write all evidence into a file here"
        ),
        Binding("r", "restart", "restart", id="run.restart", tooltip="stop all ranks, start them again"),
        Binding("l", "logs", "logs", id="run.logs", tooltip="this rank's log, full screen"),
        Binding("enter", "logs", "logs", show=False, id="run.open", tooltip="this rank's log, full screen"),
        Binding("T", "timeline", "timeline", id="run.timeline", tooltip="what happened to the run"),
        Binding(
            "tab", "app.focus_next", "stack", show=False, id="run.focus", tooltip="to the stack, the log"
        ),
        *(
            Binding(
                str(digit), f"rank({digit})", "rank", show=False, id="run.rank", tooltip="select rank 0 to 9"
            )
            for digit in range(10)
        ),
    ]

    VERTICAL_BREAKPOINTS = [(0, "-short"), (TALL, "-tall")]  # noqa: RUF012 - as the base class has it
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide")]  # noqa: RUF012

    @dataclass
    class Bundled(Message):
        """A bundle was written."""

        written: Written

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self._asked_for: object = None
        """Attempt and state for which the ranks were looked at last."""
        self._chosen_for_user: int | None = None
        self._bundling = False
        self._bound_for: object = None

    def body(self) -> ComposeResult:
        """Verdict and evidence, ranks, stack and log."""
        yield Lines(id="verdict")
        yield RankTable()
        with Horizontal(id="below"):
            yield StackView()
            yield LogPane()

    @property
    def ranks(self) -> RankTable:
        """The ranks."""
        return self.query_one(RankTable)

    @property
    def rank(self) -> int:
        """The rank that is selected; the launcher while there is none."""
        cursor = self.ranks.cursor
        return run_facts.LAUNCHER if cursor is None else cursor

    def home(self) -> Widget | None:
        """The ranks."""
        return self.ranks

    def keys(self) -> Sequence[str]:
        """What is done most."""
        return (
            "diagnosis.again",
            "run.restart",
            "diagnosis.bundle",
            "run.logs",
            "run.timeline",
            "screen.back",
        )

    def found(self) -> RunView | None:
        """The run, if any host knows it."""
        return self.store.find_run(self.run_id)

    def crumbs(self) -> Sequence[str]:
        """The fleet, the run, its diagnosis."""
        return ("fleet", self.run_id, "diagnosis")

    def headline(self) -> list[list[Piece]]:
        """The attempt, how the run stands, how new the answer is."""
        run = self.found()
        if run is None:
            return []
        mark = fmt.run_mark(run.state)
        known = self.encamp.examinations.of(self.run_id)
        parts: list[list[Piece]] = [
            [(f"attempt {run.attempt}", "quiet")],
            [(f"{mark.glyph} {mark.word}", mark.tone)],
        ]
        if self._bundling:
            parts.append([("◌ writing the bundle", fmt.STARTING)])
        if known.asking:
            parts.append([("◌ looking at all ranks", fmt.STARTING)])
        elif known.of(run) is not None:
            parts.append([(f"looked {fmt.age(time.monotonic() - known.received)} ago", "quiet")])
        return parts

    # --- redrawing ---------------------------------------------------------------------------------------

    def update(self, now: float) -> None:
        """Ask when it is time, and show what is known."""
        run = self.found()
        self.ranks.display = run is not None
        self.query_one("#below").display = run is not None
        if run is None:
            self.query_one("#verdict", Lines).show(
                [[(f" ? no host that answers knows the run {self.run_id}", "unknown")]]
            )
            return
        if self._asked_for != (run.attempt, run.state):
            self._asked_for = (run.attempt, run.state)
            self._chosen_for_user = None
            self.encamp.examinations.ask(run)
        known = self.encamp.examinations.keep_up(run, now)
        report = known.of(run)
        self._show_verdict(run, known, report, now)
        self.ranks.show(run, now, report)
        self._select(run, report)
        self._show_rank()
        bound = (run.state, report is None, self._bundling)
        if bound != self._bound_for:
            self._bound_for = bound
            self.refresh_bindings()

    def _show_verdict(self, run: RunView, known: Examination, report: Report | None, now: float) -> None:
        lines: list[list[Piece]] = []
        if report is not None:
            lines += _verdict(report, known.since(report, now), self.size.width)
            lines += self._evidence(report)
        elif known.error is None:
            lines.append([(" ◌ looking at all ranks   ", fmt.STARTING), (f"of {run.id}", "quiet")])
        problems = [] if known.error is None else [fmt.sentences(known.error.message, known.error.hint)]
        if known.error is not None and not known.asking and run.state != "stalled":
            problems[0] += " d looks again."
        for problem in [*problems, *(report.notes if report is not None else ())]:
            lines += _wrapped([(" ◐ ", fmt.DEGRADED)], printable(problem), self.size.width)
        self.query_one("#verdict", Lines).show(lines)

    def _evidence(self, report: Report) -> list[list[Piece]]:
        """What the verdict rests on, a line each, as many as there is room for."""
        findings = diagnosis_facts.findings(report.diagnosis)
        most = max(2, self.size.height // 5)
        widths = [max((len(finding[column]) for finding in findings), default=0) for column in (0, 1)]
        lines: list[list[Piece]] = []
        for who, signal, text in findings:
            head: list[Piece] = [
                (f"   {who:<{widths[0]}}  ", ""),
                (f"{signal:<{widths[1]}}  ", "quiet"),
            ]
            lines += _wrapped(head, printable(text), self.size.width, 2)
        if len(lines) > most:
            hidden = len(lines) - most + 1
            lines = [*lines[: most - 1], [(f"   and {hidden} more lines: b has all of it", "quiet")]]
        return lines

    def _select(self, run: RunView, report: Report | None) -> None:
        """Until the user selects a rank: the first of those to blame, else the first one."""
        if self._chosen_for_user in (None, self.rank):
            ranks = sorted(run.ranks)
            if report is not None:
                ranks = diagnosis_facts.order(report, ranks)
            self._chosen_for_user = ranks[0] if ranks else run_facts.LAUNCHER
            self.ranks.select(self._chosen_for_user)

    def _show_rank(self) -> None:
        """The stack and the log of the selected rank."""
        run = self.found()
        if run is None:
            return
        report = self.encamp.examinations.of(self.run_id).of(run)
        self.query_one(StackView).show(report, self.rank)
        host = run_facts.host_of(run, self.rank).name
        self.query_one(LogPane).show(host, run.id, run.attempt, run_facts.stream(self.rank))

    # --- keys --------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only what there is something for."""
        if not super().check_action(action, parameters):
            return False
        run = self.found() if self.is_mounted else None
        if action == "bundle":
            known = self.encamp.examinations.of(self.run_id)
            return run is not None and known.of(run) is not None and not self._bundling
        if action in ("again", "restart", "logs", "timeline"):
            return run is not None
        return True

    @on(RankTable.Moved)
    def _moved(self) -> None:
        self._show_rank()

    @on(RankTable.Opened)
    def _opened(self) -> None:
        self.action_logs()

    def action_again(self) -> None:
        """Look at all ranks again."""
        run = self.found()
        if run is not None:
            self.encamp.examinations.ask(run)
            self.refresh_now()

    def action_restart(self) -> None:
        """Restart the run, after a question."""
        self.do(f"restart {self.run_id}")

    def action_logs(self) -> None:
        """Show the selected rank's log on the whole screen."""
        self.encamp.open_logs(self.run_id, self.rank)

    def action_timeline(self) -> None:
        """Show what happened to the run."""
        self.do(f"timeline {self.run_id}")

    def action_rank(self, rank: int) -> None:
        """Select a rank by its number."""
        self.ranks.select(rank)

    def action_bundle(self) -> None:
        """Write all evidence of the report that is shown into a file in the folder that encamp runs in."""
        run = self.found()
        report = self.encamp.examinations.of(self.run_id).of(run) if run is not None else None
        if report is not None:
            self._bundling = True
            stamp = time.strftime("%Y%m%d-%H%M%S")
            self._bundle(report, Path.cwd() / f"{report.run}-attempt-{report.attempt}-{stamp}.tar.gz")
            self.refresh_now()

    @work(group="bundle", exit_on_error=False)
    async def _bundle(self, report: Report, target: Path) -> None:
        try:
            written = await evidence_bundle.write(report, target)
        except EncampError as error:
            self.encamp.post_message(self.encamp.Failed(error))
        else:
            missing = f" Not in it: {', '.join(written.missing)}." if written.missing else ""
            text = f"{written.file}: {fmt.size(written.bytes)}, all evidence.{missing}"
            self.encamp.post_message(self.encamp.Done(text))
        finally:
            self._bundling = False


def _verdict(report: Report, since: float, width: int) -> list[list[Piece]]:
    """The verdict and its sentence; below it for how long, and how sure that is."""
    found = report.diagnosis
    mark = MARKS.get(found.verdict, fmt.Mark("▲", found.verdict, fmt.TROUBLE))
    if found.verdict == "healthy" and report.state not in ("starting", "running", "stalled"):
        mark = fmt.run_mark(report.state)  # it is over, and nothing about it was wrong
    head = f" {mark.glyph} {mark.word}   "
    tone = "" if mark.tone == fmt.GOOD else "strong"
    lines = _wrapped([(head, mark.tone)], found.sentence, width, 3, tone)
    words = []
    if since >= 1 and found.verdict != "healthy":
        words.append(f"{fmt.duration(since)} ago" if report.failed else f"for {fmt.duration(since)}")
    if found.verdict != "healthy":
        words.append(diagnosis_facts.sureness(found.confidence))
    if words:
        lines.append([(" " * len(head), ""), (" · ".join(words), "quiet")])
    return lines


def _wrapped(head: list[Piece], text: str, width: int, most: int = 3, tone: str = "") -> list[list[Piece]]:
    """`text` behind `head`, in at most so many lines."""
    indent = sum(len(part) for part, _ in head)
    rows = run_facts.wrapped(text, width - indent - 1, most) or [""]
    return [[*(head if index == 0 else [(" " * indent, "")]), (row, tone)] for index, row in enumerate(rows)]
