"""What screens about the ranks of one run share: the table, the stack and the log of the selected rank."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from .. import run_facts
from ..fleet.store import RunView
from ..widgets.log_pane import LogPane
from ..widgets.rank_table import RankTable
from ..widgets.run_banner import TALL
from ..widgets.stack_view import StackView
from .base import BaseScreen

WIDE = 100
"""Cells of a line on which a stack and a log find room side by side."""


class RanksScreen(BaseScreen):
    """One selection, the rank, drives everything below the table."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "logs", "logs", id="run.logs", tooltip="this rank's log, full screen"),
        Binding("enter", "logs", "logs", show=False, id="run.open", tooltip="this rank's log, full screen"),
        Binding("r", "restart", "restart", id="run.restart", tooltip="stop all ranks, start them again"),
        Binding(
            "C", "continue", "let go on", id="run.continue", tooltip="let ranks go on that a signal stopped"
        ),
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

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self._chosen_for_user: int | None = None
        """The rank that was selected before the user selected one."""
        self._bound_for: object = None
        """For which state of things the bindings were looked at last."""

    def ranks_and_more(self) -> ComposeResult:
        """The ranks, and below them the stack and the log of the one that is selected."""
        yield RankTable()
        with Horizontal(id="below"):
            yield StackView()
            yield LogPane()

    def show_rank(self) -> None:
        """Show the stack and the log of the selected rank."""
        raise NotImplementedError

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

    def found(self) -> RunView | None:
        """The run, if any host knows it."""
        return self.store.find_run(self.run_id)

    def bind_for(self, state: object) -> None:
        """Look again at which keys are offered, when `state` is another one than before."""
        if state != self._bound_for:
            self._bound_for = state
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Without the run there is nothing to do with it."""
        if action == "continue":
            found = self.found() if self.is_mounted else None
            stopped = found is not None and bool(run_facts.stopped(found))
            return stopped and super().check_action(action, parameters)
        if action in ("restart", "logs", "timeline"):
            there = self.is_mounted and self.found() is not None
            return there and super().check_action(action, parameters)
        return super().check_action(action, parameters)

    @on(RankTable.Moved)
    def _moved(self) -> None:
        self.show_rank()

    @on(RankTable.Opened)
    def _opened(self) -> None:
        self.action_logs()

    def action_logs(self) -> None:
        """Show the selected rank's log on the whole screen."""
        self.encamp.open_logs(self.run_id, self.rank)

    def action_restart(self) -> None:
        """Restart the run, after a question."""
        self.do(f"restart {self.run_id}")

    def action_continue(self) -> None:
        """Let the ranks go on that a signal has stopped."""
        self.do(f"continue {self.run_id}")

    def action_timeline(self) -> None:
        """Show what happened to the run."""
        self.do(f"timeline {self.run_id}")

    def action_rank(self, rank: int) -> None:
        """Select a rank by its number."""
        self.ranks.select(rank)
