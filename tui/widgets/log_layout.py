"""Which lines stand on which rows of a screen: walking through a log whose lines have offsets, not numbers.

A place is a byte offset and a row within the line that holds it, so it stays where it is while the log grows,
while ranges are fetched and while the width changes. Only lines near the place are ever looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..fleet.log_window import Hole, Item, LogWindow


@dataclass(frozen=True, slots=True)
class Place:
    """Row `part` of the line or hole that holds the byte at `offset`."""

    offset: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the screen: row `part` of `item`, which takes `parts` rows."""

    item: Item
    part: int
    parts: int

    @property
    def last(self) -> bool:
        """Whether the item ends with this row."""
        return self.part == self.parts - 1


class Layout:
    """Rows of a window's lines, for one width. `parts_of` says how many rows an item takes."""

    def __init__(self, window: LogWindow, parts_of: Callable[[Item], int]) -> None:
        self.window = window
        self._parts_of = parts_of

    def row(self, place: Place) -> Row:
        """The row at a place, which must be inside the log."""
        item = self.window.item_at(place.offset)
        parts = self._parts_of(item)
        return Row(item, min(place.part, parts - 1), parts)

    def down(self, place: Place, count: int) -> list[Row]:
        """`count` rows from `place` on, fewer where the log ends."""
        rows: list[Row] = []
        offset, part = place.offset, place.part
        while len(rows) < count and offset < self.window.size:
            row = self.row(Place(offset, part))
            rows += [Row(row.item, index, row.parts) for index in range(row.part, row.parts)][
                : count - len(rows)
            ]
            offset, part = row.item.end, 0
        return rows

    def up(self, place: Place, count: int) -> list[Row]:
        """`count` rows before `place`, the nearest first, fewer where the log begins."""
        rows: list[Row] = []
        if place.offset < self.window.size:
            here = self.row(place)
            offset = here.item.start
            rows = [Row(here.item, index, here.parts) for index in range(here.part - 1, -1, -1)][:count]
        else:
            offset = self.window.size
        while len(rows) < count and offset > 0:
            item = self.window.item_at(offset - 1)
            parts = self._parts_of(item)
            rows += [Row(item, index, parts) for index in range(parts - 1, -1, -1)][: count - len(rows)]
            offset = item.start
        return rows

    def move(self, place: Place, delta: int) -> Place:
        """The place `delta` rows further down, or up when negative, as far as the log goes."""
        if delta < 0:
            rows = self.up(place, -delta)
            return place_of(rows[-1], upward=True) if rows else place
        rows = self.down(place, delta + 1)
        return place_of(rows[-1], upward=False) if rows else place


def place_of(row: Row, *, upward: bool) -> Place:
    """Where a row is. A hole that is come upon from below is entered at its end: that is filled first."""
    if isinstance(row.item, Hole) and upward:
        return Place(row.item.end - 1)
    return Place(row.item.start, row.part)
