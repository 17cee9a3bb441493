"""What happened to a run: attempts, stalls, saves, restarts, and who did what."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget
from textual.worker import Worker, WorkerState

from .. import formatting as fmt
from ..fleet import timeline
from ..fleet.errors import EncampError
from ..fleet.store import RunView
from ..fleet.timeline import Moment, Timeline
from ..widgets.scrolled_lines import ScrolledLines
from ..widgets.toned import Piece
from .base import BaseScreen

AGAIN_SECONDS = 5.0
"""How often the hosts of a run that lives are asked."""

MARKS = {
    "stalled": fmt.Mark("▲", "stalled", fmt.TROUBLE),
    "resumed": fmt.Mark("●", "resumed", fmt.GOOD),
    "failed": fmt.Mark("✕", "failed", fmt.TROUBLE),
    "finished": fmt.Mark("○", "finished", fmt.QUIET),
    "stopped": fmt.Mark("○", "stopped", fmt.QUIET),
    "launched": fmt.Mark("◌", "launched", fmt.STARTING),
    "restarted": fmt.Mark("◌", "restarted", fmt.STARTING),
    "saved": fmt.Mark(" ", "saved", fmt.QUIET),
}
"""Marks of events; one that is not among them is an action, and has none."""

OURSELVES = ("", "encamp", "supervisor")
"""Actors that are not worth a word: nobody did it."""

WIDEST = 120
"""Cells of a sentence: longer lines are hard to read."""


class TimelineScreen(BaseScreen):
    """The events of all attempts, the newest at the bottom."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "diagnose", "diagnose", id="run.diagnose", tooltip="which rank holds it up, and where"),
    ]

    @dataclass
    class Told(Message):
        """What the hosts told, or why they could not be asked."""

        timeline: Timeline | None = None
        error: EncampError | None = None

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self._told: Timeline | None = None
        self._error: EncampError | None = None
        self._asking = False
        self._asked = float("-inf")
        self._asked_for: object = None
        self._shown: object = None

    def body(self) -> ComposeResult:
        """The events."""
        yield ScrolledLines()

    def home(self) -> Widget | None:
        """The events."""
        return self.query_one(ScrolledLines)

    def keys(self) -> Sequence[str]:
        """What is done most."""
        return ("run.diagnose", "screen.back")

    def found(self) -> RunView | None:
        """The run, if any host knows it."""
        return self.store.find_run(self.run_id)

    def crumbs(self) -> Sequence[str]:
        """The fleet, the run, its timeline."""
        return ("fleet", self.run_id, "timeline")

    def headline(self) -> list[list[Piece]]:
        """Where the run is, and how it stands."""
        run = self.found()
        if run is None:
            return []
        mark = fmt.run_mark(run.state)
        return [[(" ".join(run.hosts), "quiet")], [(f"{mark.glyph} {mark.word}", mark.tone)]]

    def on_resize(self) -> None:
        """Break the lines anew."""
        self.refresh_now()

    # --- asking and showing ------------------------------------------------------------------------------

    def update(self, now: float) -> None:
        """Ask when something happened or it is time, and show what is known."""
        run = self.found()
        body = self.query_one(ScrolledLines)
        if run is None:
            self._show([[(f" ? no host that answers knows the run {self.run_id}", "unknown")]], body)
            return
        wanted = (run.attempt, run.state)
        due = run.live and now - self._asked >= AGAIN_SECONDS
        if not self._asking and (wanted != self._asked_for or due):
            self._asked_for, self._asked, self._asking = wanted, now, True
            self._ask(run)
        width = body.scrollable_content_region.width or self.size.width
        self._show(self._lines(run, width), body)

    @work(exclusive=True, group="timeline", exit_on_error=False)
    async def _ask(self, run: RunView) -> None:
        try:
            self.post_message(self.Told(await timeline.timeline(run, self.encamp.sessions())))
        except EncampError as error:
            self.post_message(self.Told(error=error))

    @on(Told)
    def _was_told(self, event: Told) -> None:
        self._asking = False
        self._told, self._error = event.timeline or self._told, event.error
        self.refresh_now()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """What fails unforeseen is said by the app."""
        if event.state is WorkerState.ERROR:
            self._asking = False
        self.encamp.on_worker_state_changed(event)

    def _lines(self, run: RunView, width: int) -> list[list[Piece]]:
        told, error = self._told, self._error
        if told is None and error is None:
            return [[(" ◌ asking ", fmt.STARTING), (", ".join(run.hosts), "quiet")]]
        shown = lines(told.moments, width, time.time(), live=run.live) if told is not None else []
        notes = list(told.notes) if told is not None else []
        if told is not None and not told.moments and not notes:
            shown.append([(" Its hosts have no record of what happened to it.", "quiet")])
        if error is not None:
            notes.append(fmt.sentences(error.message, error.hint))
        for note in notes:
            shown.append([(" ◐ not in it: ", fmt.DEGRADED), (note, "")])
        return shown

    def _show(self, shown: list[list[Piece]], body: ScrolledLines) -> None:
        """Stay at the end when the reader is there."""
        if shown == self._shown:
            return
        at_end = self._shown is None or body.scroll_offset.y >= body.max_scroll_y
        self._shown = shown
        body.show(shown)
        if at_end:
            self.call_after_refresh(body.scroll_end, animate=False)

    # --- keys --------------------------------------------------------------------------------------------

    def action_diagnose(self) -> None:
        """Show which rank holds the run up."""
        self.do(f"diagnose {self.run_id}")


def lines(moments: Sequence[Moment], width: int, now: float, *, live: bool) -> list[list[Piece]]:
    """A line an event, its text wrapped; attempts apart. `now` is our wall clock."""
    shown: list[list[Piece]] = []
    hosts = {host for moment in moments for host in moment.hosts}
    words = max((len(_mark(moment).word) for moment in moments), default=0)
    attempt, day = None, None
    for index, moment in enumerate(moments):
        local = time.localtime(moment.time)
        if moment.attempt != attempt or local[:3] != day:
            attempt, day = moment.attempt, local[:3]
            shown += [[]] if shown else []
            shown.append(
                [(f" attempt {attempt}", "strong"), (f"   {time.strftime('%a %b %d', local)}", "quiet")]
            )
        later = any(other.attempt > moment.attempt for other in moments[index + 1 :])
        shown += _row(moment, local, words, width, now if live and not later else None, hosts)
    return shown


def _row(
    moment: Moment,
    local: time.struct_time,
    words: int,
    width: int,
    now: float | None,
    hosts: set[str],
) -> list[list[Piece]]:
    mark = _mark(moment)
    head: list[Piece] = [
        (f"   {time.strftime('%H:%M:%S', local)}  ", "quiet"),
        (f"{mark.glyph} {mark.word:<{words}}  ", mark.tone),
    ]
    indent = sum(len(text) for text, _ in head)
    said = " · ".join(filter(None, (_length(moment, now), moment.text)))
    if moment.times > 1:
        said = f"{moment.times} times, last {said}"
    who = "" if moment.actor in OURSELVES else f"by {moment.actor}"
    where = f"on {fmt.listed(moment.hosts)}" if set(moment.hosts) < hosts and moment.hosts else ""
    more = " ".join(filter(None, (who, where)))
    room = max(20, min(WIDEST, width - indent - 2))
    texts = textwrap.wrap(said, room) or [""]
    tone = "strong" if moment.name == "stalled" else ""
    rows: list[list[Piece]] = []
    for index, text in enumerate(texts):
        rows.append([*(head if index == 0 else [(" " * indent, "")]), (text, tone)])
    if more:
        gap = "   " if texts[-1] else ""
        if len(texts[-1]) + len(gap) + len(more) <= room:
            rows[-1].append((gap + more, "quiet"))
        else:
            rows.append([(" " * indent, ""), (more, "quiet")])
    return rows


def _length(moment: Moment, now: float | None) -> str:
    """How long a stall was, or has been by `now`; empty for anything else, and where that is not known."""
    if moment.name != "stalled":
        return ""
    if moment.until is not None:
        return f"for {fmt.duration(moment.until - moment.time)}"
    return "" if now is None else f"for {fmt.duration(now - moment.time)} so far"


def _mark(moment: Moment) -> fmt.Mark:
    return MARKS.get(moment.name, fmt.Mark(" ", moment.name, ""))
