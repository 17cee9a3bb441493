"""An action on hosts while it goes on: a line a host. Leaving it does not end it."""

from __future__ import annotations

import time

from textual.app import ComposeResult

from .. import formatting as fmt
from ..actions import Action
from ..widgets.lines import Lines
from ..widgets.toned import Piece
from .dialog import Dialog, Text

TICK_SECONDS = 0.1


class GoingScreen(Dialog[None]):
    """Closes by itself when all went well; stays when something did not."""

    def __init__(self, action: Action) -> None:
        super().__init__(action.title)
        self.action = action

    def body(self) -> ComposeResult:
        """The hosts."""
        yield Lines(id="stages")

    def hint(self) -> str:
        """The way out."""
        return "esc leaves it to go on; its end is told"

    def on_mount(self) -> None:
        """Look at the action from now on."""
        self.action.watched = True
        self._look()
        self.set_interval(TICK_SECONDS, self._look)

    def on_unmount(self) -> None:
        """Its end is told otherwise."""
        self.action.watched = False

    def _look(self) -> None:
        action = self.action
        self.query_one("#stages", Lines).show(stage_lines(action))
        if action.ended is None:
            return
        if action.error is None:
            if self.is_current:
                self.dismiss(None)
            return
        self.complain(action.complaint, action.error.hint)
        self.query_one("#hint", Text).put("esc leave")


def stage_lines(action: Action) -> list[list[Piece]]:
    """Each host with what is done there, and how long it has taken so far."""
    lines: list[list[Piece]] = []
    names = max((len(host) for host, _, _ in action.lines()), default=0)
    for host, stage, failed in action.lines():
        if failed:
            mark, tone = "✕", fmt.TROUBLE
        elif action.ended is None:
            mark, tone = "◌", fmt.STARTING
        elif action.error is not None:
            mark, tone = "○", fmt.QUIET
        else:
            mark, tone = "●", fmt.GOOD
        lines.append(
            [(f"{mark} ", tone), (f"{host:<{names}}   ", ""), (stage, "quiet" if not failed else "")]
        )
    took = (time.monotonic() if action.ended is None else action.ended) - action.began
    lines.append([(f"  {fmt.duration(took)}", "quiet")])
    return lines
