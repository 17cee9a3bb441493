"""What is marked in a log: from one character of one line to another, whatever is on the screen meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..fleet.log_window import Hole, LogWindow

COPY_CHARACTERS = 512 * 1024
"""The most that is copied at once; terminals take less rather than more."""


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A character of a line: the offset of the line's first byte, and the index in what is shown of it."""

    line: int
    index: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """Everything between two points, in either order; or all the lines that they are on, when `whole`."""

    anchor: Point
    head: Point
    whole: bool = False

    def to(self, head: Point) -> Selection:
        """The same, up to another point."""
        return replace(self, head=head)

    @property
    def empty(self) -> bool:
        """Nothing is between the points."""
        return not self.whole and self.anchor == self.head

    def span(self, line: int, length: int) -> tuple[int, int] | None:
        """Which characters of the line that begins at `line` are marked; None for none of them."""
        start, end = sorted((self.anchor, self.head))
        if not start.line <= line <= end.line:
            return None
        if self.whole:
            return 0, length
        low = start.index if line == start.line else 0
        high = end.index if line == end.line else length
        return (min(low, length), min(high, length)) if low < high or not length else None

    def text(self, window: LogWindow) -> tuple[str, int]:
        """The marked text, at most about `COPY_CHARACTERS` of it, and its number of lines."""
        start, end = sorted((self.anchor, self.head))
        lines: list[str] = []
        length = 0
        offset = start.line
        while offset <= end.line and offset < window.size:
            item = window.item_at(offset)
            if isinstance(item, Hole):
                text = f"[{item.unknown_bytes} bytes that are not loaded]"
            else:
                text = window.shown(item).text
                span = self.span(item.start, len(text))
                text = text[slice(*span)] if span is not None else ""
            lines.append(text)
            length += len(text) + 1
            if length > COPY_CHARACTERS:
                break
            offset = item.end
        return "\n".join(lines), len(lines)
