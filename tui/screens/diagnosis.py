"""Why a run gets no further, or why it ended: the verdict, what it rests on, each rank's stack and log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from .. import diagnosis_facts, run_facts
from .. import formatting as fmt
from ..examining import Examination
from ..fleet import evidence_bundle
from ..fleet.diagnosis import Report
from ..fleet.errors import EncampError
from ..fleet.sanitize import printable
from ..fleet.stall_records import Page
from ..fleet.store import RunView
from ..looking_back import LookingBack
from ..widgets import verdict_lines
from ..widgets.lines import Lines
from ..widgets.log_pane import LogPane
from ..widgets.stack_view import StackView
from ..widgets.toned import Piece
from .ranks import RanksScreen


class DiagnosisScreen(RanksScreen):
    """Looks at all ranks of a run when it is opened, and again and again while the run stalls.

    It can be paged back to earlier stalls and attempts; meanwhile nothing is asked about now.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "again", "look again", id="diagnosis.again", tooltip="look at all ranks again"),
        Binding(
            "b", "bundle", "bundle", id="diagnosis.bundle", tooltip="write all evidence into a file here"
        ),
        Binding(
            "left_square_bracket",
            "page(-1)",
            "past",
            id="diagnosis.earlier",
            key_display="[ ]",
            tooltip="to the stall or attempt before",
        ),
        Binding(
            "right_square_bracket",
            "page(1)",
            "later",
            show=False,
            id="diagnosis.later",
            tooltip="to the one after, at last to now",
        ),
    ]

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self._asked_for: object = None
        """Attempt and state for which the ranks were looked at last."""
        self._past = LookingBack(self.encamp)
        self._bundling = False

    def body(self) -> ComposeResult:
        """Verdict and evidence, ranks, stack and log."""
        yield Lines(id="verdict")
        yield from self.ranks_and_more()

    def keys(self) -> Sequence[str]:
        """What is done most."""
        return (
            "diagnosis.again",
            "run.continue",
            "run.restart",
            "diagnosis.earlier",
            "diagnosis.bundle",
            "run.logs",
            "run.timeline",
            "screen.back",
        )

    def crumbs(self) -> Sequence[str]:
        """The fleet, the run, its diagnosis."""
        return ("fleet", self.run_id, "diagnosis")

    def headline(self) -> list[list[Piece]]:
        """The attempt, how the run stands, how new the answer is."""
        run = self.found()
        if run is None:
            return []
        if self._past.page is not None:
            return self._headline_of_past(self._past.page)
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

    def _headline_of_past(self, page: Page) -> list[list[Piece]]:
        number, pages = self._past.position()
        parts: list[list[Piece]] = [[(f"attempt {page.attempt}", "strong")]]
        if page.time is not None:
            parts.insert(0, [(f"stall of {fmt.clock(page.time)}", "strong")])
        if self._bundling:
            parts.insert(0, [("◌ writing the bundle", fmt.STARTING)])
        return [*parts, [(f"○ past, {number} of {pages}", fmt.QUIET)]]

    # --- redrawing ---------------------------------------------------------------------------------------

    def update(self, now: float) -> None:
        """Ask when it is time, and show what is known."""
        run = self.found()
        self._show_ranks(run is not None and (self._past.page is None or self._past.report is not None))
        if run is None:
            self.query_one("#verdict", Lines).show(
                [[(f" ? no host that answers knows the run {self.run_id}", "unknown")]]
            )
            return
        if self._asked_for != (run.attempt, run.state):
            self._asked_for = (run.attempt, run.state)
            self._past.learn(run)
            if self._past.page is None:
                self._chosen_for_user = None
                self.encamp.examinations.ask(run)
        if self._past.page is None:
            known = self.encamp.examinations.keep_up(run, now)
            self._show_verdict(run, known, known.of(run), now)
            self.ranks.show(run, now, known.of(run))
        else:
            self._show_past(self._past.page, now)
        report = self.report
        if self._past.page is None or report is not None:
            self._select(run, report)
        self.show_rank()
        stopped = tuple(run_facts.stopped(run))
        past = self._past
        self.bind_for((run.state, report is None, self._bundling, past.several, past.page, stopped))

    @property
    def report(self) -> Report | None:
        """What is shown: of now, or of the past."""
        run = self.found()
        if self._past.page is not None:
            return self._past.report
        return self.encamp.examinations.of(self.run_id).of(run) if run is not None else None

    def _show_verdict(self, run: RunView, known: Examination, report: Report | None, now: float) -> None:
        lines: list[list[Piece]] = []
        if report is not None:
            lines += verdict_lines.verdict(report, known.since(report, now), self.size.width)
            lines += verdict_lines.evidence(report, *self.size)
        elif known.error is None:
            lines.append([(" ◌ looking at all ranks   ", fmt.STARTING), (f"of {run.id}", "quiet")])
        problems = [] if known.error is None else [fmt.sentences(known.error.message, known.error.hint)]
        if known.error is not None and not known.asking and run.state != "stalled":
            problems[0] += " d looks again."
        self._say(lines, [*problems, *(report.notes if report is not None else ())])

    def _show_past(self, page: Page, now: float) -> None:
        report, error = self._past.report, self._past.error
        lines: list[list[Piece]] = []
        if report is not None:
            lines += verdict_lines.verdict(report, report.diagnosis.since_seconds, self.size.width)
            lines += verdict_lines.evidence(report, *self.size)
            self.ranks.show_past(report, now)
        elif error is None:
            what = f"attempt {page.attempt}" if page.time is None else f"the stall of {fmt.clock(page.time)}"
            lines.append([(f" ◌ reading {what}", fmt.STARTING)])
        notes = report.notes if report is not None else ()
        self._say(lines, [*([fmt.sentences(error.message, error.hint)] if error is not None else ()), *notes])

    def _show_ranks(self, shown: bool) -> None:
        hidden = not self.ranks.display
        self.ranks.display = self.query_one("#below").display = shown
        if hidden and shown:
            self.ranks.focus()  # it was taken from what was hidden

    def _say(self, lines: list[list[Piece]], notes: Sequence[str]) -> None:
        for note in notes:
            lines += verdict_lines.wrapped([(" ◐ ", fmt.DEGRADED)], printable(note), self.size.width)
        self.query_one("#verdict", Lines).show(lines)

    def _select(self, run: RunView, report: Report | None) -> None:
        """Until the user selects a rank: the first of those to blame, else the first one."""
        if self._chosen_for_user in (None, self.rank):
            ranks = sorted(run.ranks if self._past.page is None else self.ranks.rows)
            if report is not None:
                ranks = diagnosis_facts.order(report, ranks)
            self._chosen_for_user = ranks[0] if ranks else run_facts.LAUNCHER
            self.ranks.select(self._chosen_for_user)

    def show_rank(self) -> None:
        """The stack and the log of the selected rank."""
        run, page, report = self.found(), self._past.page, self.report
        if run is None:
            return
        self.query_one(StackView).show(report, self.rank)
        log, attempt, host = self.query_one(LogPane), run.attempt, run_facts.host_of(run, self.rank).name
        if page is not None and report is not None:
            attempt = page.attempt
            hosts = [rank.host for rank in report.evidence.ranks if rank.rank == self.rank]
            host = next(iter(hosts), report.parts[0].member.name)
        if host in self.store.hosts:
            log.show(host, run.id, attempt, run_facts.stream(self.rank))
        else:
            log.clear()

    # --- keys --------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only what there is something for."""
        if not super().check_action(action, parameters):
            return False
        if action == "bundle":
            return self.is_mounted and self.report is not None and not self._bundling
        if action == "again":
            return self.is_mounted and self.found() is not None
        if action == "logs":
            return self._past.page is None  # the log on the whole screen is the newest attempt's
        if action == "page":
            return self._past.several
        return True

    def action_again(self) -> None:
        """Look at all ranks again, now."""
        run = self.found()
        if run is not None:
            self._past.page = None
            self._past.learn(run)
            self.encamp.examinations.ask(run)
            self.refresh_now()

    def action_page(self, pages: int) -> None:
        """Go to an earlier stall or attempt, or to a later one."""
        run = self.found()
        if run is not None:
            self._past.step(run, pages)
            self._chosen_for_user = None
            self.refresh_now()

    def action_bundle(self) -> None:
        """Write all evidence of the report that is shown into a file in the folder that encamp runs in."""
        report = self.report
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
