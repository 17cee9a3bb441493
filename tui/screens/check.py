"""The pre-flight of one host or several: what is in the way of training on them, and what to do about it."""

from __future__ import annotations

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
from ..fleet import preflight
from ..fleet.errors import EncampError
from ..fleet.preflight import Report
from ..widgets import finding_lines
from ..widgets.scrolled_lines import ScrolledLines
from ..widgets.toned import Piece
from .base import BaseScreen

NOTHING: list[list[Piece]] = [
    [("   The first check of a host takes as long as its Pythons take to import torch.", "quiet")],
]


class Findings(ScrolledLines):
    """All findings."""


class CheckScreen(BaseScreen):
    """Checks the hosts when it is opened, and whenever it is asked to; the last report stays meanwhile."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "again", "check again", id="check.again", tooltip="check the hosts again"),
        Binding(
            "t",
            "throughput",
            "throughput",
            id="check.throughput",
            tooltip="check again, and send data to measure what the network carries",
        ),
    ]

    @dataclass
    class Checked(Message):
        """A check has come to its end."""

        report: Report

    @dataclass
    class Doing(Message):
        """What takes its time now."""

        text: str

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = tuple(names)
        self._doing = ""
        self._shown: tuple[float, int] | None = None

    @property
    def report(self) -> Report | None:
        """The newest report about these hosts."""
        return self.encamp.reports.get(self.names)

    def body(self) -> ComposeResult:
        """The findings."""
        yield Findings()

    def home(self) -> Widget | None:
        """The findings."""
        return self.query_one(Findings)

    def keys(self) -> Sequence[str]:
        """What is done most."""
        return ("check.again", "check.throughput", "screen.back")

    def crumbs(self) -> Sequence[str]:
        """Whose pre-flight it is."""
        return ("fleet", "check", " ".join(self.names))

    def headline(self) -> list[list[Piece]]:
        """How it stands, how old that is, and what is being done."""
        report = self.report
        parts: list[list[Piece]] = []
        if report is not None:
            parts.append(finding_lines.counts(report.findings))
            parts.append([(f"{fmt.age(time.time() - report.at)} old", "quiet")])
        if self._doing:
            parts.append([(f"◌ {self._doing}", fmt.STARTING)])
        return parts

    def on_mount(self) -> None:
        """Check now."""
        super().on_mount()
        self.action_again()

    def on_resize(self) -> None:
        """Break the lines anew."""
        self.refresh_now()

    def update(self, now: float) -> None:
        """Show the newest report."""
        del now
        report, width = self.report, self.query_one(Findings).scrollable_content_region.width
        shown = (report.at if report is not None else 0.0, width)
        if shown != self._shown:
            self._shown = shown
            self.query_one(Findings).show(NOTHING if report is None else finding_lines.lines(report, width))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The network is between several."""
        if action == "throughput" and len(self.names) < 2:
            return False
        return super().check_action(action, parameters)

    def action_again(self) -> None:
        """Check again, without sending much."""
        self._begin(throughput=False)

    def action_throughput(self) -> None:
        """Check again and measure what the network carries."""
        self._begin(throughput=True)

    def _begin(self, *, throughput: bool) -> None:
        self._doing = "checking"
        self._check(throughput)
        self.refresh_now()

    @work(exclusive=True, group="check", exit_on_error=False)
    async def _check(self, throughput: bool) -> None:
        try:
            sessions = [self.encamp.fleet.session(name) for name in self.names]
            report = await preflight.check(sessions, throughput=throughput, progress=self._tell)
        except EncampError as error:  # a host was removed meanwhile
            self.encamp.post_message(self.encamp.Failed(error))
            self.post_message(self.Doing(""))
        else:
            self.post_message(self.Checked(report))

    def _tell(self, text: str) -> None:
        self.post_message(self.Doing(text))

    @on(Doing)
    def _goes_on(self, event: Doing) -> None:
        self._doing = event.text
        self.refresh_now()

    @on(Checked)
    def _checked(self, event: Checked) -> None:
        self.encamp.reports[self.names] = event.report
        self._doing = ""
        self.refresh_now()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """What fails unforeseen is said by the app."""
        if event.state is WorkerState.ERROR:
            self._doing = ""
        self.encamp.on_worker_state_changed(event)
