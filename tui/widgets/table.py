"""A table drawn line by line: only the rows on the screen, and of these only the ones that changed.

A subclass says which rows there are (`keys`), when one looks different (`signature`) and what it says
(`pieces`). The table owns cursor, scrolling, mouse and repainting. Rows are known by their keys, so the
cursor stays on its row whatever is added, removed or sorted around it.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ..theme import TONE_CLASSES
from .columns import Column, Slot, fit, heads
from .toned import Piece, Toned

Key = TypeVar("Key", bound=Hashable)

EDGE = 1
"""Cells at the left that belong to the cursor, and cells that stay free at the right."""


def matches(wanted: str, words: Iterable[str]) -> bool:
    """Whether one of `words` has `wanted` in it, in any case; `!` before it inverts."""
    invert = wanted.startswith("!")
    wanted = wanted.removeprefix("!").lower()
    return not wanted or any(wanted in word.lower() for word in words) != invert


class Table(ScrollView, Toned, Generic[Key], can_focus=True):
    """Rows with a head that stays. Posts `Table.Moved` and `Table.Opened`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TONE_CLASSES

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "down", show=False, id="table.down", tooltip="next row"),
        Binding("k,up", "move(-1)", "up", show=False, id="table.up", tooltip="previous row"),
        Binding("g,home", "move_to(0)", "first", show=False, id="table.first", tooltip="first row"),
        Binding("G,end", "move_to(-1)", "last", show=False, id="table.last", tooltip="last row"),
        Binding("ctrl+f,pagedown", "page(1)", "page down", show=False, id="table.page-down"),
        Binding("ctrl+b,pageup", "page(-1)", "page up", show=False, id="table.page-up"),
    ]

    class Moved(Message):
        """The cursor of `table` is on another row, or on none."""

        def __init__(self, table: Table[Any]) -> None:
            super().__init__()
            self.table = table

    class Opened(Message):
        """The row under the cursor of `table` was chosen: by enter, or by a second click."""

        def __init__(self, table: Table[Any]) -> None:
            super().__init__()
            self.table = table

    class HeadClicked(Message):
        """The title of a column was clicked."""

        def __init__(self, column: str) -> None:
            super().__init__()
            self.column = column

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.rows: list[Key] = []
        self.slots: tuple[Slot, ...] = ()
        self.now = time.monotonic()
        self._index: dict[Key, int] = {}
        self._cursor: Key | None = None
        self._drawn: dict[int, Hashable] = {}
        self._layout: tuple[tuple[Column, ...], int] | None = None

    # --- what a subclass says ----------------------------------------------------------------------------

    def keys(self) -> Sequence[Key]:
        """All rows, in order."""
        raise NotImplementedError

    def columns(self) -> Sequence[Column]:
        """The columns worth showing; those that do not fit are left out."""
        raise NotImplementedError

    def signature(self, key: Key) -> Hashable:
        """Changes whenever the row of `key` would look different at `self.now`."""
        raise NotImplementedError

    def pieces(self, key: Key) -> list[Piece]:
        """The row of `key`, to the right of the cursor's edge."""
        raise NotImplementedError

    # --- repainting --------------------------------------------------------------------------------------

    def tick(self, now: float | None = None) -> None:
        """Take in what changed and repaint those rows. `now` is `time.monotonic()`."""
        self.now = time.monotonic() if now is None else now
        self._take_rows(list(self.keys()))
        if self._fit():
            self.refresh()
            return
        for y in range(1, self.size.height):
            index = y - 1 + self.scroll_offset.y
            if index >= len(self.rows):
                break
            if self._drawn.get(y) != self._full_signature(index):
                self.refresh(Region(0, y, self._width, 1))

    def _fit(self) -> bool:
        """Fit the columns to the width; return whether that changed anything."""
        layout = (tuple(self.columns()), self._width)
        if layout == self._layout:
            return False
        self._layout = layout
        self.slots = fit(layout[0], self._width - 2 * EDGE)
        return True

    def get_content_height(self, _container: Size, _viewport: Size, _width: int) -> int:
        """A table of automatic height is as high as its rows and its head."""
        return len(self.rows) + 1

    def render_line(self, y: int) -> Strip:
        """One line of the viewport; the first is the head."""
        width = self._width
        if self._layout is None or self._layout[1] != width:
            self._fit()
        if y == 0:
            return self.strip([(" " * EDGE, ""), *heads(self.slots)], width)
        index = y - 1 + self.scroll_offset.y
        if index >= len(self.rows):
            self._drawn.pop(y, None)
            return Strip.blank(width, self.rich_style)
        key = self.rows[index]
        self._drawn[y] = self._full_signature(index)
        here = key == self._cursor
        over = ("tone--cursor" if self.has_focus else "tone--cursor-blurred") if here else ""
        return self.strip([("▌" if here else " ", "mark"), *self.pieces(key)], width, over)

    @property
    def _width(self) -> int:
        return self.size.width

    def _full_signature(self, index: int) -> Hashable:
        key = self.rows[index]
        return key, key == self._cursor, self.has_focus, self.signature(key)

    def _take_rows(self, rows: list[Key]) -> None:
        if rows == self.rows:
            return
        before = self._index.get(self._cursor, 0) if self._cursor is not None else 0
        changed = len(rows) != len(self.rows)
        self.rows = rows
        self._index = {key: index for index, key in enumerate(rows)}
        if self._cursor not in self._index:
            self._set_cursor(rows[min(before, len(rows) - 1)] if rows else None)
        if changed:
            self.virtual_size = Size(0, len(rows) + 1)
            self.refresh(layout=True)
        else:
            self.refresh()

    # --- the cursor --------------------------------------------------------------------------------------

    @property
    def cursor(self) -> Key | None:
        """The row that the cursor is on."""
        return self._cursor

    def select(self, key: Key) -> bool:
        """Put the cursor on `key` and bring it into view; False when there is no such row."""
        index = self._index.get(key)
        if index is None:
            return False
        self._set_cursor(key)
        self._show_row(index)
        return True

    def action_move(self, rows: int) -> None:
        """Move the cursor by so many rows."""
        if self.rows:
            index = self._index.get(self._cursor, 0) if self._cursor is not None else 0
            self.select(self.rows[max(0, min(len(self.rows) - 1, index + rows))])

    def action_move_to(self, index: int) -> None:
        """Move the cursor to a row counted from the top, or with -1 to the last."""
        if self.rows:
            self.select(self.rows[index])

    def action_page(self, pages: int) -> None:
        """Move the cursor by a screenful."""
        self.action_move(pages * max(1, self.size.height - 2))

    def action_open(self) -> None:
        """Choose the row under the cursor."""
        if self._cursor is not None:
            self.post_message(self.Opened(self))

    def on_click(self, event: events.Click) -> None:
        """Select what was clicked; a second click opens it."""
        event.stop()
        if event.y == 0:
            column = self._column_at(event.x)
            if column:
                self.post_message(self.HeadClicked(column))
            return
        index = event.y - 1 + self.scroll_offset.y
        if index < len(self.rows):
            again = self.rows[index] == self._cursor and event.chain > 1
            self._set_cursor(self.rows[index])
            if again:
                self.action_open()

    def on_focus(self) -> None:
        """The cursor looks different with the focus."""
        self.refresh()

    def on_blur(self) -> None:
        """The cursor looks different without the focus."""
        self.refresh()

    def _set_cursor(self, key: Key | None) -> None:
        if key == self._cursor:
            return
        old, self._cursor = self._cursor, key
        for changed in (old, key):
            if changed is not None and changed in self._index:
                y = self._index[changed] + 1 - self.scroll_offset.y
                self.refresh(Region(0, y, self._width, 1))
        self.post_message(self.Moved(self))

    def _show_row(self, index: int) -> None:
        top, rows = self.scroll_offset.y, max(1, self.size.height - 1)
        if index < top:
            self.scroll_to(y=index, animate=False)
        elif index >= top + rows:
            self.scroll_to(y=index - rows + 1, animate=False)

    def _column_at(self, x: int) -> str:
        left = EDGE
        for slot in self.slots:
            right = left + slot.column.gap + slot.width
            if x < right:
                return slot.column.key
            left = right
        return ""
