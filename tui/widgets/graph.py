"""A plot on a range that is fixed: what it shows stays comparable for as long as one looks at it.

The range is written in the title. Where it may grow (a loss, a throughput), it grows by visible steps, and
the title is emphasised for a while after each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from textual.strip import Strip

from .. import formatting as fmt
from .. import plotting
from .toned import Piece, Toned, length

ALIGN = 8
"""Plots over steps use a multiple of so many columns: side by side they then have the same steps."""

NOTICE_SECONDS = 10.0
"""How long a title is emphasised after its range has grown."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What a graph shows. `points` are (x, y) with x growing."""

    title: str
    value: str
    points: Sequence[tuple[float, float | None]]
    seconds: float | None = None
    """With this, x is a time in seconds and the plot holds the last so many of them, the newest at the right;
    without, x is a step and the plot holds all of them from the left."""
    bad: bool = False
    """Whether the newest value is no number at all: it is shown as trouble."""


class Graph(Toned):
    """One metric. `tone` is its hue, `fixed` the top of a range that does not grow; `line` joins the dots."""

    DEFAULT_CSS = """
    Graph { height: 1fr; width: 1fr; }
    """

    def __init__(
        self, tone: str, *, fixed: float | None = None, line: bool = False, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self.tone = tone
        self.range = plotting.Range(fixed or 0.0)
        self._grows = fixed is None
        self._line = line
        self._curve = Curve("", "", ())
        self._grew_at = float("-inf")
        self._drawn: object = None
        self._lines: list[str] = []
        self._span = ""

    def reset(self) -> None:
        """Forget a range that has grown: what is shown from now on is another thing."""
        if self._grows:
            self.range = plotting.Range()
        self._drawn = None

    def show(self, curve: Curve, revision: object) -> None:
        """Show `curve`; drawn anew only when `revision` or the size is another one than before."""
        self._curve = curve
        key = (revision, self.size, time.monotonic() - self._grew_at < NOTICE_SECONDS)
        if key != self._drawn:
            self._drawn = key
            self._draw()
            self.refresh()

    def on_resize(self) -> None:
        """Draw for the new size."""
        self._draw()
        self.refresh()

    def _draw(self) -> None:
        width, height = self.size.width, self.size.height - 1
        if width <= 0 or height <= 0:
            self._lines = []
            return
        if self._curve.seconds is not None:
            values = plotting.window(self._curve.points, 2 * width, self._curve.seconds)
            self._span = f"last {fmt.span(self._curve.seconds)}"
        else:
            columns = max(ALIGN, 2 * width // ALIGN * ALIGN)
            values, start, bucket = plotting.buckets(self._curve.points, columns)
            values += [None] * (2 * width - len(values))
            end = start + bucket * columns
            self._span = f"steps {fmt.count(int(start))}–{fmt.count(int(end))}" if bucket else ""
        grown = self.range.grown
        if self._grows:
            self.range.include(values)
        if self.range.grown > grown:
            self._grew_at = time.monotonic()
        draw = plotting.curve if self._line else plotting.area
        self._lines = draw(values, width, height, self.range.bottom, self.range.top or 1.0)

    @property
    def label(self) -> str:
        """The range as the title says it."""
        if not self.range.top:
            return ""
        return f"{fmt.si(self.range.bottom, short=True)}–{fmt.si(self.range.top, short=True)}"

    def render_line(self, y: int) -> Strip:
        """The title, then the plot."""
        width = self.size.width
        if y == 0:
            return self.strip(self._title(width), width)
        if y - 1 >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        return self.strip([(self._lines[y - 1], self.tone)], width)

    def _title(self, width: int) -> list[Piece]:
        curve = self._curve
        left: list[Piece] = [
            (curve.title, "quiet"),
            (f" {curve.value}", "trouble" if curve.bad else "strong"),
        ]
        grew = time.monotonic() - self._grew_at < NOTICE_SECONDS
        right: list[Piece] = [(("now " if grew else "") + self.label, "degraded" if grew else "quiet")]
        if self._span and length(left) + length(right) + len(self._span) + 5 <= width:
            right.insert(0, (self._span + "   ", "quiet"))
        return [*left, (" " * max(1, width - length(left) - length(right)), ""), *right]
