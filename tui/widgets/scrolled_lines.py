"""Lines of pieces that scroll as tables do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll

from .lines import Lines
from .toned import Piece


class ScrolledLines(VerticalScroll, can_focus=True):
    """Shows the lines it was given last."""

    DEFAULT_CSS = """
    ScrolledLines {
        height: 1fr;
        scrollbar-size-vertical: 1;
        scrollbar-background: $background;
        scrollbar-background-hover: $background;
        scrollbar-background-active: $background;
        scrollbar-color: $primary 30%;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "scroll_down", "down", show=False, id="table.down", tooltip="a line down"),
        Binding("k,up", "scroll_up", "up", show=False, id="table.up", tooltip="a line up"),
        Binding("ctrl+f,pagedown", "page_down", "page down", show=False, id="table.page-down"),
        Binding("ctrl+b,pageup", "page_up", "page up", show=False, id="table.page-up"),
        Binding("g,home", "scroll_home", "first", show=False, id="table.first", tooltip="to the beginning"),
        Binding("G,end", "scroll_end", "last", show=False, id="table.last", tooltip="to the end"),
    ]

    def compose(self) -> ComposeResult:
        """The lines."""
        yield Lines()

    @property
    def text(self) -> str:
        """What is shown, without tones."""
        return self.query_one(Lines).text

    def show(self, lines: Sequence[Sequence[Piece]]) -> None:
        """Show these lines from now on."""
        self.query_one(Lines).show(lines)
