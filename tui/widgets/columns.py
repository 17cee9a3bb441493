"""Columns of a table: which of them fit into a width, and how wide each becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..formatting import clip, pad
from .toned import Piece, cells

Cell = str | Piece | list[Piece]
"""What a row says in a column: plain text, text with a tone, or several of these in a row."""


MARGIN = 20
"""Up to so many cells that no column wants go before the last one, so that it ends at the right edge."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Widths are in cells; `gap` is the space before it."""

    key: str
    title: str
    width: int
    right: bool = False
    keep: int = 0
    """Columns with the lowest `keep` go first when the width is short."""
    widest: int = 0
    """How wide it may grow when there is room; 0 is never wider than `width`."""
    gap: int = 2


@dataclass(frozen=True, slots=True)
class Slot:
    """A column that is shown, with the width it got."""

    column: Column
    width: int


def fit(columns: Sequence[Column], width: int) -> tuple[Slot, ...]:
    """The columns that fit into `width`, in their order; what is left over makes growing columns wider.

    Room goes first to the columns that are kept longest, so a name is read in full before a history gets
    longer.
    """
    shown = list(columns)
    while shown and _needed(shown) > width:
        shown.remove(min(shown, key=lambda column: column.keep))
    left = width - _needed(shown)
    widths = {column.key: column.width for column in shown}
    for column in sorted(shown, key=lambda column: -column.keep):
        more = min(left, max(0, column.widest - column.width))
        widths[column.key] += more
        left -= more
    if shown and shown[-1].right and left <= MARGIN:
        widths[shown[-1].key] += left
    return tuple(Slot(column, widths[column.key]) for column in shown)


def width_of(slots: Sequence[Slot], key: str) -> int:
    """The width that the column `key` got; 0 when it is not shown."""
    return next((slot.width for slot in slots if slot.column.key == key), 0)


def line(slots: Sequence[Slot], row: Mapping[str, Cell], tone: str | None = None) -> list[Piece]:
    """The pieces of one row. `tone`, when given, replaces the tones of all cells (a stale row is dim)."""
    pieces: list[Piece] = []
    for slot in slots:
        if slot.column.gap:
            pieces.append((" " * slot.column.gap, ""))
        cell = row.get(slot.column.key, "")
        parts = cell if isinstance(cell, list) else [(cell, "")] if isinstance(cell, str) else [cell]
        if len(parts) == 1:
            text, own = parts[0]
            pieces.append((pad(text, slot.width, slot.column.right), own if tone is None else tone))
        else:
            pieces += _aligned(parts, slot, tone)
    return pieces


def _aligned(parts: Sequence[Piece], slot: Slot, tone: str | None) -> list[Piece]:
    left = slot.width
    shown: list[Piece] = []
    for whole, own in parts:
        text = clip(whole, left)
        left -= cells(text)
        shown.append((text, own if tone is None else tone))
    space = (" " * left, "")
    return [space, *shown] if slot.column.right else [*shown, space]


def heads(slots: Sequence[Slot]) -> list[Piece]:
    """The titles above the columns."""
    return line(slots, {slot.column.key: (slot.column.title, "head") for slot in slots})


def _needed(columns: Sequence[Column]) -> int:
    return sum(column.width + column.gap for column in columns)
