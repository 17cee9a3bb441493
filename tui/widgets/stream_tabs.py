"""One line with the streams of an attempt: each rank with its state, the launcher, and all of them merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.message import Message

from ..formatting import Mark
from .lines import Lines
from .toned import Piece, cells


@dataclass(frozen=True, slots=True)
class Tab:
    """A stream that can be chosen: how it is called, and the mark of its state."""

    key: str
    label: str
    mark: Mark | None = None


class StreamTabs(Lines):
    """Shows the tabs around the current one; a click chooses another."""

    DEFAULT_CSS = """
    StreamTabs { height: 1; }
    """

    @dataclass
    class Chosen(Message):
        """The tab of this key was clicked."""

        key: str

    def __init__(self) -> None:
        super().__init__()
        self._tabs: Sequence[Tab] = ()
        self._current = ""
        self._spans: list[tuple[int, int, str]] = []

    def put(self, tabs: Sequence[Tab], current: str) -> None:
        """Show these tabs, `current` being the one that is looked at."""
        self._tabs, self._current = tabs, current
        self._lay_out()

    def on_resize(self) -> None:
        """Show as many as fit."""
        self._lay_out()

    def _lay_out(self) -> None:
        tabs = list(self._tabs)
        at = next((index for index, tab in enumerate(tabs) if tab.key == self._current), 0)
        first, last = at, at + 1
        room = self.size.width - 4 - (_width(tabs[at]) if tabs else 0)
        # Grow to both sides in turn, so that the neighbours of the current tab are in view.
        while first > 0 or last < len(tabs):
            before = _width(tabs[first - 1]) if first > 0 else 0
            if before and before <= room and (at - first <= last - at or last == len(tabs)):
                first, room = first - 1, room - before
            elif last < len(tabs) and _width(tabs[last]) <= room:
                last, room = last + 1, room - _width(tabs[last])
            elif before and before <= room:
                first, room = first - 1, room - before
            else:
                break
        pieces: list[Piece] = [("‹ " if first > 0 else "  ", "quiet")]
        x = 2
        self._spans = []
        for tab in tabs[first:last]:
            self._spans.append((x, x + _width(tab), tab.key))
            pieces += _pieces(tab, tab.key == self._current)
            x += _width(tab)
        if last < len(tabs):
            pieces.append((" ›", "quiet"))
        self.show([pieces])

    def on_click(self, event: events.Click) -> None:
        """Choose what was clicked."""
        for left, right, key in self._spans:
            if left <= event.x < right:
                self.post_message(self.Chosen(key))


def _pieces(tab: Tab, current: bool) -> list[Piece]:
    mark: list[Piece] = [(tab.mark.glyph, tab.mark.tone), (" ", "")] if tab.mark is not None else []
    if current:
        return [("[", "key"), *mark, (tab.label, "strong"), ("] ", "key")]
    return [(" ", ""), *mark, (tab.label, "quiet"), ("  ", "")]


def _width(tab: Tab) -> int:
    return cells(tab.label) + 3 + (cells(tab.mark.glyph) + 1 if tab.mark is not None else 0)
