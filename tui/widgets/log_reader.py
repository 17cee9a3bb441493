"""Where a reader is in a log: what is on the screen, what is followed, marked and looked for. No drawing.

The reader stands on a place in the log (see `log_layout`), so that following, reading and wrapping cost the
same however long the log is. It reads the feed's window and tells the feed what is missing; it never waits.
"""

from __future__ import annotations

from collections import OrderedDict

from ..fleet.log_feed import LogFeed, Toward
from ..fleet.log_window import Hole, Item, Line
from . import log_render
from .log_layout import Layout, Place, Row, place_of
from .log_render import Drawn
from .log_selection import Point, Selection

SIDE_STEP = 8
"""Cells that one step sideways scrolls."""

NEAR_BYTES = 48 * 1024
"""What is closer than this to what is shown is fetched before anybody gets there."""

DRAWN_LINES = 2048
"""Laid out lines that are kept."""


class Reader:
    """One reader of one feed, at a size in cells."""

    def __init__(self, feed: LogFeed) -> None:
        self.feed = feed
        self.window = feed.window
        self.following = True
        self.frozen = False
        """Nothing moves by itself: a mouse button is down on the text."""
        self.wrap = True
        self.x = 0
        """Cells scrolled sideways; 0 while lines are wrapped."""
        self.cursor: int | None = None
        """Offset of a byte of the line that the reader is on; None while following."""
        self.selection: Selection | None = None
        self.rows: list[Row] = []
        self._width = 1
        self._height = 0
        self._top = Place(0)
        self._goal: int | None = None
        self._drawn: OrderedDict[tuple[Line, int], Drawn] = OrderedDict()
        self._layout = Layout(self.window, self._parts_of)

    # --- what is on the screen ------------------------------------------------------------------------

    def resize(self, width: int, height: int) -> None:
        """Lines have `width` cells, the screen `height` rows. A cursor that was in view stays there."""
        here = self._cursor_in_view
        self._width, self._height = max(1, width), max(0, height)
        self.arrange()
        if here and not self._cursor_in_view and self.cursor is not None:
            self._top = self._layout.move(Place(self.window.item_at(self.cursor).end), -self._height)
            self.arrange()

    @property
    def _cursor_in_view(self) -> bool:
        if self.cursor is None or self.following or not self.rows:
            return False
        return self.rows[0].item.start <= self.cursor < self.end

    @property
    def end(self) -> int:
        """Offset of the first byte below what is shown."""
        return self.rows[-1].item.end if self.rows else 0

    @property
    def at_end(self) -> bool:
        """Whether the log's last row is shown."""
        return not self.rows or (self.rows[-1].last and self.end >= self.window.size)

    @property
    def here(self) -> int | None:
        """Offset of the line that actions are about: the cursor's, or the last one. None without any line."""
        if self.cursor is not None or not self.rows:
            return self.cursor
        return self.rows[-1].item.start

    def drawn(self, line: Line) -> Drawn:
        """How a line is laid out at the present width."""
        key = (line, self._width if self.wrap else 0)
        drawn = self._drawn.get(key)
        if drawn is None:
            drawn = self._drawn[key] = log_render.draw(self.window.shown(line), key[1])
            if len(self._drawn) > DRAWN_LINES:
                self._drawn.popitem(last=False)
        else:
            self._drawn.move_to_end(key)
        return drawn

    def _parts_of(self, item: Item) -> int:
        return self.drawn(item).parts if isinstance(item, Line) else 1

    @property
    def place(self) -> object:
        """Changes when the reader goes somewhere else."""
        return self.following, self.cursor, None if self.following else self._top

    def state(self) -> object:
        """Changes with everything that `arrange` depends on."""
        return self.window.revision, self.following, self._top, self._width, self._height, self.wrap

    def arrange(self) -> None:
        """Put lines on the rows and ask the feed for what is missing."""
        if self.following and not self.frozen:
            self._show_end()
        else:
            self._reach_goal()
            self.rows = self._layout.down(self._top, self._height)
            if len(self.rows) < self._height:
                self._show_end()
        self._ask()

    def _show_end(self) -> None:
        """Put the log's last rows on the screen."""
        self.rows = self._layout.up(Place(self.window.size), self._height)[::-1]
        if self.rows:
            self._top = place_of(self.rows[0], upward=True)

    def _ask(self) -> None:
        """Tell the feed which bytes are missing on the screen, or soon will be."""
        if not self.rows:
            return
        start = self.rows[0].item.start
        self.window.known.focus = (0, 0) if self.following else (start, self.end)
        holes = [index for index, row in enumerate(self.rows) if isinstance(row.item, Hole)]
        if self._goal is not None:
            self.feed.want(self._goal, Toward.AROUND)
        elif holes:
            index = holes[-1] if self.following else holes[0]
            hole = self.rows[index].item
            if index == 0 and self._top.offset > hole.start:
                self.feed.want(hole.end - 1, Toward.EARLIER)
            else:
                self.feed.want(hole.start, Toward.LATER)
        elif not self.following:
            low, high = self.window.known.known_around(start)
            if low > 0 and start - low < NEAR_BYTES:
                self.feed.want(low - 1, Toward.EARLIER)
            elif high < self.window.size and high - self.end < NEAR_BYTES:
                self.feed.want(high, Toward.LATER)

    def thumb(self) -> tuple[int, int] | None:
        """The rows of a scroll bar that stand for what is shown; None when the whole log is.

        It touches an end only when that end of the log is shown.
        """
        size, height = self.window.size, self._height
        if not self.rows or size == 0:
            return None
        start = min(max(self.rows[0].item.start, self._top.offset), self.end)
        from_first = (
            self.rows[0].item.start == 0 and self.rows[0].part == 0 and isinstance(self.rows[0].item, Line)
        )
        if from_first and self.at_end:
            return None
        length = max(1, round((self.end - start) * height / size))
        room = height - length
        if self.at_end or room <= 0:
            return max(0, room), height
        first = 0 if from_first else max(1, round(start * height / size))
        first = min(first, max(0, room - 1))
        return first, first + length

    def line_end_count(self) -> int | None:
        """How many lines there are below what is shown; None when not all of them are known."""
        return self.window.newlines(self.end, self.window.size)

    # --- moving ---------------------------------------------------------------------------------------

    def stop_following(self) -> None:
        """Stay where we are; the line at the bottom becomes the reader's."""
        if self.following:
            self.following = False
            if self.rows:
                self._top = self._place_of_first()
                self.cursor = self.rows[-1].item.start

    def follow(self) -> None:
        """Go to the end and stay there."""
        self.following = True
        self.cursor = self._goal = None
        self.arrange()

    def scroll(self, delta: int) -> None:
        """Move what is shown by so many rows. Going on beyond the end follows."""
        if not self.rows or (self.following and delta > 0):
            return
        if delta > 0 and self.at_end:
            self.follow()
            return
        self.stop_following()
        self._goal = None
        self._top = self._layout.move(self._place_of_first(), delta)
        self.arrange()
        self._keep_cursor_in_view()

    def go(self, offset: int) -> None:
        """Show the log from the line at `offset` on."""
        self.stop_following()
        self._goal = None
        self._top = Place(min(max(0, offset), max(0, self.window.size - 1)))
        self.arrange()
        self._keep_cursor_in_view()

    def first(self) -> None:
        """To the first byte."""
        self.go(0)
        self._put_cursor(0)

    def jump(self, offset: int) -> None:
        """Bring the line at `offset` into view, fetching it first where that is needed."""
        self.stop_following()
        self.cursor = self._goal = offset
        self.arrange()

    def side(self, steps: int) -> None:
        """Scroll sideways, as far as there is text."""
        if not self.wrap:
            lines = [self.drawn(row.item) for row in self.rows if isinstance(row.item, Line)]
            widest = max((len(drawn.text) for drawn in lines), default=0)
            self.x = max(0, min(self.x + steps * SIDE_STEP, widest - self._width // 2))

    def toggle_wrap(self) -> None:
        """Wrap long lines, or cut them."""
        self.wrap = not self.wrap
        self.x = 0
        self._top = Place(self._top.offset)
        self.arrange()

    def move_cursor(self, delta: int) -> None:
        """To the next or the previous line. A line higher than the screen is scrolled through."""
        if not self.rows or (self.following and delta > 0):
            return
        self.stop_following()
        here = self.rows[-1].item.start if self.cursor is None else self.cursor
        item = self.window.item_at(min(here, self.window.size - 1))
        if delta < 0:
            self._cursor_up(item)
        else:
            self._cursor_down(item)

    def _cursor_up(self, item: Item) -> None:
        first = self.rows[0]
        if first.item != item:
            self._put_cursor(self.window.item_at(item.start - 1).start if item.start else 0)
        elif first.part > 0:
            self.scroll(-1)
        elif item.start > 0:
            self.scroll(-1)
            self._put_cursor(self.window.item_at(item.start - 1).start)

    def _cursor_down(self, item: Item) -> None:
        last = self.rows[-1]
        if last.item == item and not last.last:
            self.scroll(1)
            return
        if item.end >= self.window.size:
            self.follow()
            return
        following = self.window.item_at(item.end)
        self._put_cursor(following.start)
        hidden = 0
        if last.item == item:
            hidden = self._parts_of(following)
        elif last.item == following:
            hidden = last.parts - 1 - last.part
        if hidden:
            self.scroll(min(hidden, self._height - 1 or 1))

    def _place_of_first(self) -> Place:
        row = self.rows[0]
        return self._top if isinstance(row.item, Hole) else Place(row.item.start, row.part)

    def _reach_goal(self) -> None:
        """Go to where a jump leads: nearer the top than the bottom, unless it is in view already."""
        if self._goal is None:
            return
        if self._goal >= self.window.size:
            self._goal = None
            return
        item = self.window.item_at(self._goal)
        if isinstance(item, Hole):
            self._top = Place(self._goal)
            return
        if not any(row.item == item for row in self.rows[:-1]):
            self._top = self._layout.move(Place(item.start), -(self._height // 3))
        self.cursor = item.start
        self._goal = None

    def _keep_cursor_in_view(self) -> None:
        if self.cursor is None or not self.rows or self.following:
            return
        if self.cursor < self.rows[0].item.start:
            self._put_cursor(self.rows[0].item.start)
        elif self.cursor >= self.end:
            self._put_cursor(self.rows[-1].item.start)

    def _put_cursor(self, offset: int) -> None:
        self.cursor = offset
        if self.selection is not None and self.selection.whole:
            self.selection = self.selection.to(Point(offset))

    # --- marking --------------------------------------------------------------------------------------

    def mark(self) -> None:
        """Begin to mark lines at the cursor, or mark nothing any more."""
        if self.selection is not None and self.selection.whole:
            self.selection = None
        elif self.here is not None:
            self.stop_following()
            here = Point(self.here)
            self.selection = Selection(here, here, whole=True)

    def select(self, start: Point, end: Point) -> None:
        """Mark what is between two points."""
        self.stop_following()
        self.selection = Selection(start, end)

    def point_at(self, x: int, y: int) -> Point | None:
        """The character at a cell of the text; None when there is no text at all."""
        if not self.rows:
            return None
        row = self.rows[max(0, min(y, len(self.rows) - 1))]
        if isinstance(row.item, Hole):
            return Point(row.item.start)
        drawn = self.drawn(row.item)
        return Point(row.item.start, min(drawn.index_at(row.part, x + self.x), drawn.note_at))

    def marked_text(self) -> tuple[str, int] | None:
        """What is marked, or else the line that the reader is on, and how many lines that is."""
        selection = self.selection
        if selection is None or selection.empty:
            if self.here is None:
                return None
            selection = Selection(Point(self.here), Point(self.here), whole=True)
        return selection.text(self.window)
