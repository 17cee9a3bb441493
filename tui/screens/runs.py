"""All runs of the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget

from .. import formatting as fmt
from ..widgets.lines import Lines
from ..widgets.run_table import RunTable
from ..widgets.toned import Piece
from .filtered import FilteredScreen


class RunsScreen(FilteredScreen):
    """A line a run."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "launch", "launch", id="runs.launch", tooltip="start a run"),
        Binding("l", "logs", "logs", id="runs.logs", tooltip="logs of this run, full screen"),
        Binding(
            "d", "diagnose", "diagnose", show=False, id="runs.diagnose", tooltip="which rank holds it up"
        ),
        Binding(
            "r", "restart", "restart", show=False, id="runs.restart", tooltip="stop this run, start it again"
        ),
        Binding("S", "stop", "stop", show=False, id="runs.stop", tooltip="stop this run"),
    ]

    def body(self) -> ComposeResult:
        """The table, or what to do about an empty one."""
        yield RunTable(self.store)
        yield Lines(id="empty")

    @property
    def table(self) -> RunTable:
        """The runs."""
        return self.query_one(RunTable)

    @property
    def filtered(self) -> RunTable:
        """The table."""
        return self.table

    def home(self) -> Widget | None:
        """The table."""
        return self.table

    def keys(self) -> Sequence[str]:
        """What is done most."""
        return ("runs.open", "runs.logs", "runs.launch", "here.filter", "screen.back")

    def crumbs(self) -> Sequence[str]:
        """The runs, and the filter in force."""
        return ("fleet", "runs", f"/{self.table.filter}") if self.table.filter else ("fleet", "runs")

    def headline(self) -> list[list[Piece]]:
        """How many there are, and how many of them live."""
        runs = self.store.runs()
        live = sum(run.live for run in runs)
        return [[(fmt.plural(len(runs), "run"), "")], [(f"{live} live", "")]]

    def update(self, now: float) -> None:
        """Redraw the runs that changed."""
        self.table.tick(now)
        note = self.query_one("#empty", Lines)
        known = any(host.runs for host in self.store.hosts.values())
        self.table.display = bool(self.table.rows)
        if self.table.rows:
            note.show([])
        elif known:
            note.show([[(f"   No run matches /{self.table.filter}. esc shows all of them.", "quiet")]])
        else:
            note.show(
                [
                    [("   No host knows of a run yet.", "strong")],
                    [],
                    [("   n  ", "key"), ("starts one from a profile; from a shell:", "")],
                    [("        encamp launch PROFILE --on HOST", "rate")],
                ]
            )

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only what can be done."""
        if not super().check_action(action, parameters):
            return False
        if action in ("logs", "diagnose", "restart", "stop"):
            return self.is_mounted and self.table.cursor is not None
        return True

    @on(RunTable.Moved)
    def _moved(self) -> None:
        self.refresh_bindings()

    @on(RunTable.Opened)
    def _opened(self) -> None:
        self.do(f"run {self.table.cursor}")

    def action_launch(self) -> None:
        """Start a run."""
        self.encamp.launch("")

    def action_logs(self) -> None:
        """Show the logs of the run under the cursor."""
        self.do(f"logs {self.table.cursor}")

    def action_diagnose(self) -> None:
        """Show which rank holds the run under the cursor up."""
        self.do(f"diagnose {self.table.cursor}")

    def action_restart(self) -> None:
        """Restart the run under the cursor."""
        self.do(f"restart {self.table.cursor}")

    def action_stop(self) -> None:
        """Stop the run under the cursor."""
        self.do(f"stop {self.table.cursor}")
