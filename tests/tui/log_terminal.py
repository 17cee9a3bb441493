"""The child of the terminal test: shows a file's log in the real app's pane, scrolls through it, and leaves.

python log_terminal.py FILE
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fakes.logs import FileSource  # noqa: E402
from textual.app import App, ComposeResult  # noqa: E402

from tui import theme  # noqa: E402
from tui.widgets.log_pane import LogPane  # noqa: E402


class TerminalApp(App[None]):
    CSS_PATH = str(ROOT / "tui" / "encamp.tcss")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._turns = 0

    def compose(self) -> ComposeResult:
        yield LogPane()

    def on_mount(self) -> None:
        self.register_theme(theme.DARK)
        self.theme = theme.DARK.name
        pane = self.query_one(LogPane)
        pane.show_source(FileSource(self.path))
        pane.view.focus()
        self.set_interval(0.15, self._turn)

    def _turn(self) -> None:
        """Look at every screenful, wrapped and cut, from the end to the first byte."""
        view = self.query_one(LogPane).view
        if view.reader is None or not view.rows:
            return
        self._turns += 1
        if view.rows[0].item.start > 0 or view.rows[0].part > 0:
            view.action_page(-1)
        elif view.wrap:
            view.action_wrap()
            view.action_last()
        elif self._turns > 3:
            self.exit()


if __name__ == "__main__":
    TerminalApp(Path(sys.argv[1])).run()
