"""Drawing numbers with dots: braille histories and plots on ranges that are fixed and never move silently.

Pure functions. A braille cell is 2 dots wide and 4 dots high.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

# Bits of a braille cell's dots, from the bottom up, for its left and its right column.
_LEFT = (0x40, 0x04, 0x02, 0x01)
_RIGHT = (0x80, 0x20, 0x10, 0x08)
_BLANK = 0x2800

STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""What ranges grow by: one of these times a power of ten."""


def nice_ceiling(value: float) -> float:
    """The smallest of `STEPS` times a power of ten that is at least `value`; 1 for what is not positive."""
    if not value > 0 or math.isinf(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    for step in STEPS:
        if step * power >= value * (1 - 1e-9):
            return step * power
    return 10.0 * power


def history(values: Sequence[float | None], width: int, top: float = 100.0) -> str:
    """The last `2 * width` values on a range of 0 to `top`, newest at the right, one line high.

    A value that is known shows at least the bottom dot; an unknown one shows nothing.
    """
    return area(values[-2 * width :], width, 1, 0.0, top)[0] if width > 0 else ""


def area(values: Sequence[float | None], width: int, height: int, low: float, high: float) -> list[str]:
    """`height` lines of `width` cells filled from the bottom up to each value; the newest is rightmost."""
    levels = [_level(value, height * 4, low, high) for value in _right_aligned(values, width)]
    return _draw(((x, 0, level) for x, level in enumerate(levels) if level is not None), width, height)


def curve(values: Sequence[float | None], width: int, height: int, low: float, high: float) -> list[str]:
    """Like `area`, but a line: each dot is joined upwards or downwards to the one before it."""
    levels = [_level(value, height * 4, low, high) for value in _right_aligned(values, width)]
    spans = []
    before: int | None = None
    for x, level in enumerate(levels):
        if level is not None:
            step = 0 if before is None else (before < level) - (before > level)
            joint = level if before is None else before + step
            spans.append((x, min(joint, level), max(joint, level)))
        before = level
    return _draw(spans, width, height)


def _right_aligned(values: Sequence[float | None], width: int) -> list[float | None]:
    dots = 2 * width
    shown = list(values[-dots:])
    return [None] * (dots - len(shown)) + shown


def _level(value: float | None, dots: int, low: float, high: float) -> int | None:
    """The dot, counted from the bottom, that stands for `value`; what is beyond the range is at its ends."""
    if value is None or math.isnan(value):
        return None
    share = (value - low) / (high - low) if high > low else 0.0
    return max(0, min(dots - 1, math.ceil(min(max(share, 0.0), 1.0) * dots) - 1))


def _draw(spans: Iterable[tuple[int, int, int]], width: int, height: int) -> list[str]:
    """Lines with the dots set from `low` to `high`, both included, in the column of dots `x`."""
    cells = [[0] * width for _ in range(height)]
    for x, low, high in spans:
        bits = _RIGHT if x % 2 else _LEFT
        for dot in range(low, high + 1):
            cells[height - 1 - dot // 4][x // 2] |= bits[dot % 4]
    return ["".join(chr(_BLANK + bits) if bits else " " for bits in row) for row in cells]


def buckets(
    points: Iterable[tuple[float, float | None]], columns: int
) -> tuple[list[float | None], float, float]:
    """Average points `(x, y)` into at most `columns` columns whose width only ever doubles.

    Returns the columns' values from the first x on, the x at which the first column starts, and the width
    of a column. Columns start at multiples of their width, so a point never moves to another column while
    the width stays. The smallest width is 1. Without points there is no column, and its width is 0.

    A value stands for all of the way since the point before it: a rank that reports every tenth step has a
    curve without gaps. A point whose y is not known leaves its gap.
    """
    points = list(points)
    known = [(x, y) for x, y in points if _known(y)]
    if not known or columns <= 0:
        return [], 0.0, 0.0
    first, last = known[0][0], max(x for x, _ in known)
    width = 1.0
    while last // width - first // width >= columns:
        width *= 2
    start = first // width
    sums = [0.0] * columns
    counts = [0] * columns
    before = 0
    for x, y in points:
        index = int(x // width - start)
        if not 0 <= index < columns:
            continue
        if y is not None and _known(y):
            for between in range(before + 1, index):
                if not counts[between]:
                    sums[between], counts[between] = y, 1
            sums[index] += y
            counts[index] += 1
        before = max(before, index)
    filled = int(last // width - start) + 1
    values = [sums[i] / counts[i] if counts[i] else None for i in range(filled)]
    return values, start * width, width


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def window(points: Iterable[tuple[float, float | None]], columns: int, seconds: float) -> list[float | None]:
    """Average points `(time, y)` of the last `seconds` into `columns` columns, the newest at the right end.

    Columns start at multiples of their width, so that a point stays in its column while time goes on.
    """
    width = max(1.0, math.ceil(seconds / columns)) if columns > 0 else 1.0
    known = list(points)
    if not known or columns <= 0:
        return [None] * max(0, columns)
    first = known[-1][0] // width - columns + 1
    sums = [0.0] * columns
    counts = [0] * columns
    for at, y in known:
        index = int(at // width - first)
        if y is not None and 0 <= index < columns and _known(y):
            sums[index] += y
            counts[index] += 1
    return [sums[i] / counts[i] if counts[i] else None for i in range(columns)]


class Range:
    """A range from 0 that grows by visible steps and never shrinks by itself."""

    def __init__(self, top: float = 0.0, bottom: float = 0.0) -> None:
        self.top = top
        self.bottom = bottom
        self.grown = 0
        """How many times it grew after it first had a top."""

    def include(self, values: Iterable[float | None]) -> bool:
        """Grow so that all `values` are inside; return whether it grew."""
        known = [value for value in values if value is not None and math.isfinite(value)]
        if not known:
            return False
        top = max(self.top, nice_ceiling(max(known))) if max(known) > self.top else self.top
        bottom = min(self.bottom, -nice_ceiling(-min(known))) if min(known) < self.bottom else self.bottom
        if (top, bottom) == (self.top, self.bottom):
            return False
        self.grown += self.top > 0
        self.top, self.bottom = top, bottom
        return True
