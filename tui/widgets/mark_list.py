"""A list whose lines are marked with space. A mark is a letter that is there or not, not only a colour."""

from __future__ import annotations

from rich.segment import Segment
from textual.strip import Strip
from textual.widgets import SelectionList


class MarkList(SelectionList[str]):
    """Names; `selected` are the marked ones in the order in which they were marked."""

    def render_line(self, y: int) -> Strip:
        """A line; that of a name which is not marked has no letter in its box."""
        strip = super().render_line(y)
        index = self.scroll_offset.y + y
        if index >= self.option_count or self.get_option_at_index(index).value in self.selected:
            return strip
        left, mark, *rest = strip
        return Strip(
            [left, Segment(" " * len(mark.text), mark.style, mark.control), *rest], strip.cell_length
        )

    def names(self) -> list[str]:
        """All names, marked or not."""
        return [self.get_option_at_index(at).value for at in range(self.option_count)]
