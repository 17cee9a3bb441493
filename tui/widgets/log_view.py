"""The log on the screen: draws what the reader sees, and moves the reader by keys and mouse."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.strip import Strip

from .. import formatting as fmt
from ..fleet.log_feed import LogFeed
from ..fleet.log_window import Hole, Line
from . import log_render
from .log_layout import Row
from .log_reader import Reader
from .log_render import Layer
from .log_selection import Point
from .toned import Toned

EDGE = 1
"""Cells at the left that belong to the cursor."""

TIME_WIDTH = 9
BAR_WIDTH = 1
WHEEL_ROWS = 3
RANK_COLOURS = 8

Prefix = Callable[[int], tuple[str, int] | None]
"""From the offset of a line to what stands before it: a text, and which of the `RANK_COLOURS` it has."""


class LogView(Toned, can_focus=True):
    """Shows one feed: its end while following, or the place where the reader is."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *Toned.COMPONENT_CLASSES,
        *("log--match", "log--selection", "log--thumb"),
        *(f"log--rank-{number}" for number in range(RANK_COLOURS)),
    }

    DEFAULT_CSS = """
    LogView {
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

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "cursor(1)", "down", show=False, id="log.down", tooltip="next line"),
        Binding(
            "k,up", "cursor(-1)", "up", show=False, id="log.up", tooltip="previous line; stops following"
        ),
        Binding(
            "ctrl+f,pagedown", "page(1)", "page down", show=False, id="log.page-down", tooltip="a page down"
        ),
        Binding("ctrl+b,pageup", "page(-1)", "page up", show=False, id="log.page-up", tooltip="a page up"),
        Binding("g,home", "first", "first byte", show=False, id="log.first", tooltip="to the first byte"),
        Binding("G,end", "last", "end", show=False, id="log.last", tooltip="to the end, and follow"),
        Binding("left", "side(-1)", "left", show=False, id="log.left", tooltip="left, while lines are cut"),
        Binding(
            "right", "side(1)", "right", show=False, id="log.right", tooltip="right, while lines are cut"
        ),
        Binding("f", "follow", "follow", id="log.follow", tooltip="follow new output, or stop"),
        Binding("w", "wrap", "wrap", id="log.wrap", tooltip="wrap long lines, or cut them"),
        Binding("t", "times", "time", id="log.times", tooltip="show when lines arrived here"),
        Binding(
            "space", "mark", "mark", show=False, id="log.mark", tooltip="mark lines from here to the cursor"
        ),
        Binding("y", "copy", "copy", id="log.copy", tooltip="copy the marked lines, or this one"),
    ]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.reader: Reader | None = None
        self.wrap = True
        self.times = False
        self.pattern: re.Pattern[str] | None = None
        self.prefix: Prefix | None = None
        self.prefix_width = 0
        self._empty = ""
        self._grabbed = False
        self._pressed: Point | None = None
        """Where the mouse went down; nothing moves under it until it is released."""
        self._signatures: list[object] = []
        self._thumb: tuple[int, int] | None = None
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
        self._pressed, self._grabbed = None, False
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
            self._repaint()

    def redraw(self) -> None:
        """Arrange and repaint everything: the look of all rows changed."""
        if self.reader is not None:
            self.reader.resize(self._text_width, self.size.height)
        self._repaint()
        self.refresh()

    def _repaint(self) -> None:
        """Repaint the rows that look different now."""
        if self.reader is not None:
            self._seen = self.reader.state()
            self._thumb = self.reader.thumb()
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
        return max(1, self.size.width - self._gutter - BAR_WIDTH)

    @property
    def _gutter(self) -> int:
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

    # --- keys -----------------------------------------------------------------------------------------

    @property
    def marked(self) -> bool:
        """Whether anything is marked or highlighted."""
        return self.pattern is not None or (self.reader is not None and self.reader.selection is not None)

    def action_cursor(self, delta: int) -> None:
        """To the next or the previous line."""
        if self.reader is not None:
            self.reader.move_cursor(delta)
            self._repaint()

    def action_page(self, pages: int) -> None:
        """A screenful up or down."""
        self._scroll(pages * max(1, self.size.height - 1))

    def action_first(self) -> None:
        """To the first byte."""
        if self.reader is not None:
            self.reader.first()
            self._repaint()

    def action_last(self) -> None:
        """To the end, and follow it."""
        if self.reader is not None:
            self.reader.follow()
            self._repaint()

    def action_follow(self) -> None:
        """Follow, or stop following."""
        if self.reader is not None:
            if self.reader.following:
                self.reader.stop_following()
            else:
                self.reader.follow()
            self._repaint()

    def action_side(self, steps: int) -> None:
        """Scroll sideways while lines are cut."""
        if self.reader is not None:
            self.reader.side(steps)
            self.refresh()

    def action_wrap(self) -> None:
        """Wrap long lines, or cut them."""
        self.wrap = not self.wrap
        if self.reader is not None:
            self.reader.toggle_wrap()
        self.redraw()

    def action_times(self) -> None:
        """Show when lines arrived, or not."""
        self.times = not self.times
        self.redraw()

    def action_mark(self) -> None:
        """Begin to mark lines at the cursor, or mark nothing any more."""
        if self.reader is not None:
            self.reader.mark()
            self._repaint()

    def unmark(self) -> None:
        """Mark nothing, highlight nothing."""
        self.pattern = None
        if self.reader is not None:
            self.reader.selection = None
        self.redraw()

    def action_copy(self) -> None:
        """Copy what is marked, or the line at the cursor, to the terminal's clipboard."""
        marked = self.reader.marked_text() if self.reader is not None else None
        if self.reader is None or marked is None:
            return
        text, lines = marked
        self.app.copy_to_clipboard(text)
        self.notify(f"copied {fmt.plural(lines, 'line')}, {fmt.plural(len(text), 'character')}", timeout=2)
        self.reader.selection = None
        self._repaint()

    def jump(self, offset: int) -> None:
        """Bring the line at `offset` into view."""
        if self.reader is not None:
            self.reader.jump(offset)
            self._repaint()

    def highlight(self, pattern: re.Pattern[str] | None) -> None:
        """Highlight what matches."""
        if pattern != self.pattern:
            self.pattern = pattern
            self.refresh()

    def _scroll(self, rows: int) -> None:
        if self.reader is not None:
            self.reader.scroll(rows)
            self._repaint()

    # --- the mouse ------------------------------------------------------------------------------------

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Grab the bar, or begin to mark text."""
        if event.button != 1 or self.reader is None or not self.rows:
            return
        self.capture_mouse()
        if event.x >= self.size.width - BAR_WIDTH and self._thumb is not None:
            self._grabbed = True
            self._drag_bar(event.y)
        else:
            self._pressed = self.reader.point_at(event.x - self._gutter, event.y)
            self.reader.frozen = True

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Drag the bar, or mark up to here; beyond an edge the log scrolls along."""
        if self.reader is None:
            return
        if self._grabbed:
            self._drag_bar(event.y)
        elif self._pressed is not None:
            if event.y < 0:
                self.reader.scroll(-1)
            elif event.y >= self.size.height and not self.reader.at_end:
                self.reader.scroll(1)
            point = self.reader.point_at(event.x - self._gutter, event.y)
            if point is not None and (point != self._pressed or self.reader.selection is not None):
                self.reader.select(self._pressed, point)
            self._repaint()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """End dragging; a press in one place puts the cursor there."""
        if self.reader is None or not (self._grabbed or self._pressed is not None):
            return
        self.release_mouse()
        if self._pressed is not None:
            self.reader.frozen = False
            if self.reader.point_at(event.x - self._gutter, event.y) == self._pressed:
                self.reader.selection = None
                if not self.reader.following:
                    self.reader.cursor = self._pressed.line
        self._pressed, self._grabbed = None, False
        self.reader.arrange()
        self._repaint()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Down; sideways with shift."""
        event.stop()
        if event.shift or event.ctrl:
            self.action_side(1)
        else:
            self._scroll(WHEEL_ROWS)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Up; sideways with shift."""
        event.stop()
        if event.shift or event.ctrl:
            self.action_side(-1)
        else:
            self._scroll(-WHEEL_ROWS)

    def _drag_bar(self, y: int) -> None:
        """Go to the part of the log that is at this height of the bar."""
        assert self.reader is not None
        height = max(1, self.size.height - 1)
        if y >= height:
            self.reader.follow()
        else:
            self.reader.go(max(0, y) * self.reader.window.size // height)
        self._repaint()

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
        return "▐" if self._thumb is not None and self._thumb[0] <= y < self._thumb[1] else " "

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
