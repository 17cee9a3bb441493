"""How a log's line becomes cells: where it is wrapped, its colours, and what is highlighted in it.

Text comes from `LogWindow.shown` only, so all of it is printable; everything here is plain calculation.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from rich.cells import get_character_cell_size
from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style

from ..fleet.log_window import Shown
from ..fleet.sanitize import Color, Sgr

Layer = tuple[Style, Sequence[tuple[int, int]]]
"""A style and the ranges of characters, in order and apart, that are drawn in it over their own."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A line's whole text with its styles, and the indices of the characters that begin its rows."""

    text: str
    pieces: tuple[tuple[str, Sgr], ...]
    note_at: int
    """Where the note about a cut begins in `text`."""
    breaks: tuple[int, ...]
    narrow: bool
    """Every character takes one cell."""

    @property
    def parts(self) -> int:
        """Rows that it takes."""
        return len(self.breaks)

    def part_range(self, part: int) -> tuple[int, int]:
        """The characters of one row."""
        start = self.breaks[part]
        return start, self.breaks[part + 1] if part + 1 < len(self.breaks) else len(self.text)

    def part_of(self, index: int) -> int:
        """The row on which a character stands."""
        return bisect_right(self.breaks, index) - 1

    def index_at(self, part: int, cell: int) -> int:
        """The character at a cell of a row, or the one after the last."""
        start, end = self.part_range(part)
        if self.narrow:
            return min(end, start + max(0, cell))
        position = 0
        for index in range(start, end):
            position += get_character_cell_size(self.text[index])
            if position > cell:
                return index
        return end


def draw(shown: Shown, width: int) -> Drawn:
    """Lay a line out in rows of `width` cells; a width of 0 puts it on one row however long it is."""
    text = shown.text
    note_at = len(text)
    if shown.note:
        text = f"{text} {shown.note}" if text else shown.note
    narrow = text.isascii() or all(get_character_cell_size(char) == 1 for char in text)
    return Drawn(text, shown.pieces, note_at, _breaks(text, width, narrow), narrow)


def _breaks(text: str, width: int, narrow: bool) -> tuple[int, ...]:
    if width <= 0 or (narrow and len(text) <= width):
        return (0,)
    if narrow:
        return tuple(range(0, len(text), width))
    breaks = [0]
    taken = 0
    for index, char in enumerate(text):
        cells = get_character_cell_size(char)
        if taken + cells > width and index > breaks[-1]:
            breaks.append(index)
            taken = 0
        taken += cells
    return tuple(breaks)


def segments(
    drawn: Drawn, start: int, end: int, base: Style, quiet: Style, layers: Sequence[Layer] = ()
) -> list[Segment]:
    """Characters [start, end) of a line as segments over `base`; the note about a cut is drawn in `quiet`."""
    if not layers and len(drawn.pieces) == 1 and end <= drawn.note_at:
        return [Segment(drawn.text[start:end], style_of(drawn.pieces[0][1], base))]
    result: list[Segment] = []
    own: list[tuple[int, Style]] = []
    position = 0
    for text, sgr in drawn.pieces:
        position += len(text)
        own.append((position, style_of(sgr, base)))
    own.append((len(drawn.text), quiet))
    low = start
    for piece_end, style in own:
        high = min(piece_end, end)
        if low < high:
            result += _layered(drawn.text, low, high, style, layers)
            low = high
    return result


def _layered(text: str, low: int, high: int, style: Style, layers: Sequence[Layer]) -> list[Segment]:
    """Characters [low, high), all of one style, with the layers drawn over, the last one on top."""
    if not layers:
        return [Segment(text[low:high], style)]
    cuts = {low, high}
    for _, spans in layers:
        cuts.update(min(max(cut, low), high) for span in spans for cut in span)
    result: list[Segment] = []
    at = [0] * len(layers)
    for first, last in pairwise(sorted(cuts)):
        over = style
        for index, (layer_style, spans) in enumerate(layers):
            while at[index] < len(spans) and spans[at[index]][1] <= first:
                at[index] += 1
            if at[index] < len(spans) and spans[at[index]][0] <= first:
                over = over + layer_style
        result.append(Segment(text[first:last], over))
    return result


def matches(pattern: re.Pattern[str], text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Where a search matches within [start, end) or across its edges; matches that touch are one."""
    spans: list[tuple[int, int]] = []
    reach = len(pattern.pattern)
    for match in pattern.finditer(text, max(0, start - reach), end + reach):
        if spans and spans[-1][1] == match.start():
            spans[-1] = (spans[-1][0], match.end())
        else:
            spans.append(match.span())
    return spans


@lru_cache(maxsize=2048)
def style_of(sgr: Sgr, base: Style) -> Style:
    """The style of a piece over `base`; text that hides in its own background is made visible."""
    background = sgr.background if sgr.background != sgr.foreground else None
    return base + Style(
        color=_color(sgr.foreground),
        bgcolor=_color(background),
        bold=sgr.bold or None,
        dim=sgr.dim or None,
        italic=sgr.italic or None,
        underline=sgr.underline or None,
        reverse=sgr.reverse or None,
        strike=sgr.strike or None,
    )


def _color(color: Color | None) -> RichColor | None:
    if color is None:
        return None
    if isinstance(color, int):
        return RichColor.from_ansi(color)
    return RichColor.from_rgb(*color)


@lru_cache(maxsize=256)
def clock(second: int) -> str:
    """A wall clock second in local time."""
    return time.strftime("%H:%M:%S", time.localtime(second))
