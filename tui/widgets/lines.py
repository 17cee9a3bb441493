"""A few lines of pieces: headers, banners, notes. They repaint only when what they say changes."""

from __future__ import annotations

from collections.abc import Sequence

from textual.geometry import Size
from textual.strip import Strip

from .toned import Piece, Toned, length


class Lines(Toned):
    """Shows the lines it was given last; as high as they are many, where CSS leaves the height open."""

    DEFAULT_CSS = """
    Lines { height: auto; width: 1fr; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[list[Piece]] = []

    @property
    def text(self) -> str:
        """What is shown, without tones."""
        return "\n".join("".join(text for text, _ in line) for line in self._lines)

    def show(self, lines: Sequence[Sequence[Piece]]) -> None:
        """Show these lines from now on."""
        fresh = [list(line) for line in lines]
        if fresh != self._lines:
            higher = len(fresh) != len(self._lines)
            self._lines = fresh
            self.refresh(layout=higher)

    def get_content_height(self, _container: Size, _viewport: Size, _width: int) -> int:
        """One row a line."""
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        """One line, cut or padded to the width."""
        return self.strip(self.line_at(y), self.size.width)

    def line_at(self, y: int) -> Sequence[Piece]:
        """What line `y` says at the width that the widget has."""
        return self._lines[y] if y < len(self._lines) else ()


class Header(Lines):
    """The first line of a screen: where I am on the left, what matters most on the right."""

    DEFAULT_CSS = """
    Header { height: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._left: list[Piece] = []
        self._right: list[list[Piece]] = []

    def put(self, crumbs: Sequence[str], right: Sequence[Sequence[Piece]]) -> None:
        """Show `crumbs` and as many parts of `right` as fit; the last one stays."""
        self._left = [(" encamp  ", "key")]
        for index, crumb in enumerate(crumbs):
            if index:
                self._left.append((" › ", "quiet"))
            self._left.append((crumb, "strong" if index == len(crumbs) - 1 else "quiet"))
        self._right = [list(part) for part in right]
        self.show([*self._right, self._left])

    def get_content_height(self, _container: Size, _viewport: Size, _width: int) -> int:
        """One row."""
        return 1

    def line_at(self, y: int) -> Sequence[Piece]:
        """Both sides, with the space between them that the width leaves."""
        width = self.size.width
        parts = list(self._right)
        while len(parts) > 1 and length(self._left) + _joined(parts) + 3 > width:
            parts.pop(0)
        right: list[Piece] = []
        for index, part in enumerate(parts):
            if index:
                right.append((" · " if index < len(parts) - 1 else "   ", "quiet"))
            right += part
        space = max(1, width - length(self._left) - length(right) - 1)
        return [*self._left, (" " * space, ""), *right, (" ", "")] if y == 0 else ()


def _joined(parts: Sequence[Sequence[Piece]]) -> int:
    return sum(length(part) + 3 for part in parts)
