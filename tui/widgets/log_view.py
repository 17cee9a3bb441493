"""The log that is worked with: moves the reader by keys and mouse, marks and copies."""

from __future__ import annotations

import re
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from .. import formatting as fmt
from ..fleet.log_feed import LogFeed
from .log_canvas import BAR_WIDTH, LogCanvas, Prefix
from .log_selection import Point

WHEEL_ROWS = 3


class LogView(LogCanvas, can_focus=True):
    """Shows one feed: its end while following, or the place where the reader is."""

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
        self._grabbed = False
        self._pressed: Point | None = None
        """Where the mouse went down; nothing moves under it until it is released."""

    def show(self, feed: LogFeed | None, *, prefix: Prefix | None = None, prefix_width: int = 0) -> None:
        """Show another log, from its end."""
        self._pressed, self._grabbed = None, False
        super().show(feed, prefix=prefix, prefix_width=prefix_width)

    # --- keys -----------------------------------------------------------------------------------------

    @property
    def marked(self) -> bool:
        """Whether anything is marked or highlighted."""
        return self.pattern is not None or (self.reader is not None and self.reader.selection is not None)

    def action_cursor(self, delta: int) -> None:
        """To the next or the previous line."""
        if self.reader is not None:
            self.reader.move_cursor(delta)
            self.repaint()

    def action_page(self, pages: int) -> None:
        """A screenful up or down."""
        self._scroll(pages * max(1, self.size.height - 1))

    def action_first(self) -> None:
        """To the first byte."""
        if self.reader is not None:
            self.reader.first()
            self.repaint()

    def action_last(self) -> None:
        """To the end, and follow it."""
        if self.reader is not None:
            self.reader.follow()
            self.repaint()

    def action_follow(self) -> None:
        """Follow, or stop following."""
        if self.reader is not None:
            if self.reader.following:
                self.reader.stop_following()
            else:
                self.reader.follow()
            self.repaint()

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
            self.repaint()

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
        self.repaint()

    def jump(self, offset: int) -> None:
        """Bring the line at `offset` into view."""
        if self.reader is not None:
            self.reader.jump(offset)
            self.repaint()

    def highlight(self, pattern: re.Pattern[str] | None) -> None:
        """Highlight what matches."""
        if pattern != self.pattern:
            self.pattern = pattern
            self.refresh()

    def _scroll(self, rows: int) -> None:
        if self.reader is not None:
            self.reader.scroll(rows)
            self.repaint()

    # --- the mouse ------------------------------------------------------------------------------------

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Grab the bar, or begin to mark text."""
        if event.button != 1 or self.reader is None or not self.rows:
            return
        self.capture_mouse()
        if event.x >= self.size.width - BAR_WIDTH and self.thumb is not None:
            self._grabbed = True
            self._drag_bar(event.y)
        else:
            self._pressed = self.reader.point_at(event.x - self.lead, event.y)
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
            point = self.reader.point_at(event.x - self.lead, event.y)
            if point is not None and (point != self._pressed or self.reader.selection is not None):
                self.reader.select(self._pressed, point)
            self.repaint()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """End dragging; a press in one place puts the cursor there."""
        if self.reader is None or not (self._grabbed or self._pressed is not None):
            return
        self.release_mouse()
        if self._pressed is not None:
            self.reader.frozen = False
            if self.reader.point_at(event.x - self.lead, event.y) == self._pressed:
                self.reader.selection = None
                if not self.reader.following:
                    self.reader.cursor = self._pressed.line
        self._pressed, self._grabbed = None, False
        self.reader.arrange()
        self.repaint()

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
        self.repaint()
