"""The log as cells on the screen: draws what a reader sees, and repaints only the rows that changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip

from .. import formatting as fmt
from ..fleet.log_feed import LogFeed
from ..fleet.log_window import Hole, Line
from . import log_render
from .log_layout import Row
from .log_reader import Reader
from .log_render import Layer
from .toned import Toned

EDGE = 1
"""Cells at the left that belong to the cursor."""

TIME_WIDTH = 9
BAR_WIDTH = 1
RANK_COLOURS = 8

Prefix = Callable[[int], tuple[str, int] | None]
"""From the offset of a line to what stands before it: a text, and which of the `RANK_COLOURS` it has."""


class LogCanvas(Toned):
    """Draws one reader: lines with times and prefixes, what is marked, what a search matches."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *Toned.COMPONENT_CLASSES,
        *("log--match", "log--selection", "log--thumb"),
        *(f"log--rank-{number}" for number in range(RANK_COLOURS)),
    }

    DEFAULT_CSS = """
    LogCanvas {
        height: 1fr; width: 1fr; background: $background;
        & > .log--match { text-style: reverse; }
        & > .log--selection { background: $primary 45%; }
        & > .log--thumb { color: $foreground 40%; }
        & > .log--rank-0 { color: $primary; }
        & > .log--rank-1 { color: $accent; }
        & > .log--rank-2 { color: $secondary; }
        & > .log--rank-3 { color: $foreground; }
        & > .log--rank-4 { color: $primary-lighten-2; }
        & > .log--rank-5 { color: $accent-lighten-2; }
        & > .log--rank-6 { color: $secondary-lighten-2; }
        & > .log--rank-7 { color: $text-muted; }
        &:nocolor > .log--selection { text-style: underline; }
        &:ansi {
            & > .log--selection { background: ansi_blue; color: ansi_bright_white; }
            & > .log--thumb { color: ansi_bright_black; }
            & > .log--rank-0 { color: ansi_blue; }
            & > .log--rank-1 { color: ansi_magenta; }
            & > .log--rank-2 { color: ansi_cyan; }
            & > .log--rank-3 { color: ansi_default; }
            & > .log--rank-4 { color: ansi_bright_blue; }
            & > .log--rank-5 { color: ansi_bright_magenta; }
            & > .log--rank-6 { color: ansi_bright_cyan; }
            & > .log--rank-7 { color: ansi_bright_black; }
        }
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.reader: Reader | None = None
        self.wrap = True
        self.times = False
        self.pattern: re.Pattern[str] | None = None
        self.prefix: Prefix | None = None
        self.prefix_width = 0
        self.thumb: tuple[int, int] | None = None
        """The rows of the scroll bar's handle."""
        self._empty = ""
        self._signatures: list[object] = []
        self._seen: object = None
        self._part_styles: dict[tuple[str, str], Style] = {}

    def notify_style_update(self) -> None:
        """Forget the colours of the theme that was."""
        self._part_styles.clear()
        super().notify_style_update()

    # --- what is shown --------------------------------------------------------------------------------

    def show(self, feed: LogFeed | None, *, prefix: Prefix | None = None, prefix_width: int = 0) -> None:
        """Show another log, from its end."""
        self.prefix, self.prefix_width = prefix, prefix_width
        self.reader = Reader(feed) if feed is not None else None
        if self.reader is not None:
            self.reader.wrap = self.wrap
        self.redraw()

    def look(self, empty: str = "") -> None:
        """Take in what came since the last look. `empty` is said while there is no output at all."""
        if empty != self._empty:
            self._empty = empty
            self._seen = None
        if self.reader is not None and self._seen != self.reader.state():
            self.reader.arrange()
            self.repaint()

    def redraw(self) -> None:
        """Arrange and repaint everything: the look of all rows changed."""
        if self.reader is not None:
            self.reader.resize(self._text_width, self.size.height)
        self.repaint()
        self.refresh()

    def repaint(self) -> None:
        """Repaint the rows that look different now."""
        if self.reader is not None:
            self._seen = self.reader.state()
            self.thumb = self.reader.thumb()
        height = self.size.height
        signatures = [self._signature(y) for y in range(height)]
        changed = [
            y for y, one in enumerate(signatures) if y >= len(self._signatures) or one != self._signatures[y]
        ]
        self._signatures = signatures
        if len(changed) * 2 > height:
            self.refresh()
        elif changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    @property
    def _text_width(self) -> int:
        return max(1, self.size.width - self.lead - BAR_WIDTH)

    @property
    def lead(self) -> int:
        """Cells before the text."""
        return EDGE + (TIME_WIDTH if self.times else 0) + self.prefix_width

    @property
    def rows(self) -> list[Row]:
        """What is on the screen."""
        return self.reader.rows if self.reader is not None else []

    def on_resize(self) -> None:
        """Arrange for the new size."""
        self.redraw()

    def on_focus(self) -> None:
        """The cursor looks different with the focus."""
        self.refresh()

    def on_blur(self) -> None:
        """The cursor looks different without the focus."""
        self.refresh()

    # --- drawing --------------------------------------------------------------------------------------

    def _signature(self, y: int) -> object:
        """Changes when row `y` would look different, apart from what repaints everything."""
        if y >= len(self.rows) or self.reader is None:
            return self._empty if y == 0 and not self.rows else None
        row = self.rows[y]
        selection = self.reader.selection
        span = selection.span(row.item.start, 1 << 40) if selection is not None else None
        return row, self._is_here(row), span, self._bar(y)

    def _is_here(self, row: Row) -> bool:
        reader = self.reader
        if reader is None or reader.cursor is None or reader.following:
            return False
        return row.item.start <= reader.cursor < row.item.end

    def _bar(self, y: int) -> str:
        return "▐" if self.thumb is not None and self.thumb[0] <= y < self.thumb[1] else " "

    def render_line(self, y: int) -> Strip:
        """One row of the screen."""
        width = self.size.width
        if y >= len(self.rows):
            text = f" {self._empty}" if y == 0 and not self.rows else ""
            return self.strip([(text, "quiet")], width)
        row = self.rows[y]
        here = self._is_here(row)
        over = ("tone--cursor" if self.has_focus else "tone--cursor-blurred") if here else ""
        edge = "▌" if here and row.part == 0 else " "
        if isinstance(row.item, Hole):
            text = f"··· {fmt.size(row.item.unknown_bytes)} not loaded ···"
            return self.strip([(edge, "mark"), (text, "quiet")], width, over)
        parts = [Segment(edge, self.tone_style("mark", over))]
        parts += self._before(row, over)
        parts += self._text(row, row.item, over)
        parts.append(Segment(self._bar(y), self._part_style("log--thumb", over)))
        return Strip(parts, width)

    def _before(self, row: Row, over: str) -> list[Segment]:
        """Time and prefix of a line's first row, and the space below them."""
        parts: list[Segment] = []
        first = row.part == 0
        if self.times and self.reader is not None:
            text = ""
            if first:
                arrived = self.reader.window.arrived(row.item.start)
                text = fmt.NONE if arrived is None else log_render.clock(int(arrived))
            parts.append(Segment(text.rjust(TIME_WIDTH - 1) + " ", self.tone_style("quiet", over)))
        if self.prefix_width:
            found = self.prefix(row.item.start) if first and self.prefix is not None else None
            text, colour = found if found is not None else ("", 0)
            style = self._part_style(f"log--rank-{colour % RANK_COLOURS}", over)
            parts.append(Segment(text[: self.prefix_width].ljust(self.prefix_width), style))
        return parts

    def _text(self, row: Row, line: Line, over: str) -> list[Segment]:
        """The text of a row, exactly as wide as there is room."""
        assert self.reader is not None
        width = self._text_width
        drawn = self.reader.drawn(line)
        start, end = drawn.part_range(row.part)
        if not self.wrap:
            start, end = drawn.index_at(0, self.reader.x), drawn.index_at(0, self.reader.x + width)
        layers: list[Layer] = []
        found = log_render.matches(self.pattern, drawn.text, start, end) if self.pattern is not None else []
        if found:
            layers.append((self._part_style("log--match"), found))
        selection = self.reader.selection
        marked = selection.span(line.start, drawn.note_at) if selection is not None else None
        if marked is not None:
            layers.append((self._part_style("log--selection"), [marked]))
        base, quiet = self.tone_style("", over), self.tone_style("quiet", over)
        parts = log_render.segments(drawn, start, end, base, quiet, layers)
        if not drawn.narrow:
            parts = list(Strip(parts).adjust_cell_length(width, base))
        elif end - start < width:
            parts.append(Segment(" " * (width - end + start), base))
        if not self.wrap and end < len(drawn.text):
            parts = [*Strip(parts, width).crop(0, width - 1), Segment("›", quiet)]
        return parts

    def _part_style(self, part: str, over: str = "") -> Style:
        """What a component adds to the text under it, or all of it where there is no text under it."""
        style = self._part_styles.get((part, over))
        if style is None:
            own = self.get_component_rich_style(part, partial=True)
            whole = self.get_component_rich_style(part)
            style = Style(
                color=whole.color if own.color is not None else None,
                bgcolor=whole.bgcolor if own.bgcolor is not None else None,
                underline=own.underline,
                reverse=own.reverse,
            )
            if part not in ("log--match", "log--selection"):
                style = self.tone_style("", over) + style
            self._part_styles[part, over] = style
        return style
