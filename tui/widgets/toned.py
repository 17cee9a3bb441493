"""The one way from text to the screen for widgets drawn line by line.

A line is a list of pieces, `(text, tone)`. `Toned.strip` cuts and pads it to the widget's width, makes every
text safe for the terminal (see `tui.fleet.sanitize`), and gives each tone the colour that the theme has
for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from ..fleet.sanitize import printable
from ..formatting import clip
from ..theme import TONE_CLASSES

Piece = tuple[str, str]
"""Text and its tone; the empty tone is plain text."""


def cells(text: str) -> int:
    """How many cells `text` takes."""
    return len(text) if text.isascii() else cell_len(text)


def length(pieces: Iterable[Piece]) -> int:
    """How many cells the pieces take together."""
    return sum(cells(text) for text, _ in pieces)


class Toned(Widget):
    """A widget that draws pieces."""

    COMPONENT_CLASSES: ClassVar[set[str]] = TONE_CLASSES
    ALLOW_SELECT = False

    _tone_styles: dict[tuple[str, str], Style] | None = None

    def notify_style_update(self) -> None:
        """Forget the colours of the theme that was."""
        self._tone_styles = None
        super().notify_style_update()

    def tone_style(self, tone: str, over: str = "") -> Style:
        """The style of `tone`, on the background and with the attributes of the component `over`."""
        if self._tone_styles is None:
            self._tone_styles = {}
        style = self._tone_styles.get((tone, over))
        if style is None:
            style = self.get_component_rich_style(f"tone--{tone}") if tone else self.rich_style
            if over:
                under = self.get_component_rich_style(over)
                if self.app.native_ansi_color and over == "tone--cursor":
                    # The terminal's own colours cannot be blended: a row in one pair of them stays legible.
                    style = under + Style(bold=style.bold)
                else:
                    style = style + Style(bgcolor=under.bgcolor, reverse=under.reverse)
            self._tone_styles[tone, over] = style
        return style

    def strip(self, pieces: Iterable[Piece], width: int, over: str = "") -> Strip:
        """`pieces` as exactly `width` cells."""
        segments: list[Segment] = []
        left = width
        for raw, tone in pieces:
            text = printable(raw)
            taken = cells(text)
            if taken > left:
                text = clip(text, left)
                taken = cells(text)
            if text:
                segments.append(Segment(text, self.tone_style(tone, over)))
            left -= taken
            if left <= 0:
                break
        if left > 0:
            segments.append(Segment(" " * left, self.tone_style("", over)))
        return Strip(segments, width)
