"""A reader's place holds while the log grows, is fetched, wraps; keys move it as one expects."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fakes.logs import MemorySource
from hypothesis import given, settings
from hypothesis import strategies as st

from tui.fleet.log_feed import LogFeed, Toward
from tui.fleet.log_window import Hole, Line
from tui.widgets.log_reader import Reader
from tui.widgets.log_selection import Point


class Wishes(LogFeed):
    """A feed that only notes what is asked of it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(MemorySource(), **options)
        self.wishes: list[tuple[int, Toward]] = []

    def want(self, offset: int, toward: Toward) -> None:
        self.wishes.append((offset, toward))


def reader_of(data: bytes, width: int = 20, height: int = 5) -> Reader:
    feed = Wishes()
    feed.window.add(0, data)
    reader = Reader(feed)
    reader.resize(width, height)
    reader.arrange()
    return reader


def lines(count: int, start: int = 0) -> bytes:
    return b"".join(b"line %03d\n" % number for number in range(start, start + count))


def shown(reader: Reader) -> list[str]:
    """The text of each row."""
    texts = []
    for row in reader.rows:
        if isinstance(row.item, Line):
            drawn = reader.drawn(row.item)
            texts.append(drawn.text[slice(*drawn.part_range(row.part))])
        else:
            texts.append("<hole>")
    return texts


def numbers(reader: Reader) -> list[int]:
    return [int(text.split()[1]) for text in shown(reader)]


def cursor_text(reader: Reader) -> str:
    assert reader.cursor is not None
    item = reader.window.item_at(reader.cursor)
    assert isinstance(item, Line)
    return reader.window.shown(item).text


def test_following_shows_the_end_and_what_comes() -> None:
    reader = reader_of(lines(20))
    assert numbers(reader) == [15, 16, 17, 18, 19]
    reader.window.add(reader.window.size, lines(2, 20) + b"half")
    reader.arrange()
    assert shown(reader) == ["line 018", "line 019", "line 020", "line 021", "half"][-5:]
    assert reader.at_end
    assert reader.cursor is None


def test_a_short_log_starts_at_the_top() -> None:
    reader = reader_of(lines(2))
    assert numbers(reader) == [0, 1]
    assert reader.thumb() is None


def test_scrolling_up_stops_following_and_holds_the_place() -> None:
    reader = reader_of(lines(20))
    reader.scroll(-3)
    assert not reader.following
    assert numbers(reader) == [12, 13, 14, 15, 16]
    reader.window.add(reader.window.size, lines(100, 20))
    reader.arrange()
    assert numbers(reader) == [12, 13, 14, 15, 16]
    assert reader.line_end_count() == 103


def test_scrolling_beyond_the_end_follows_again() -> None:
    reader = reader_of(lines(20))
    reader.scroll(-3)
    reader.scroll(10)
    assert numbers(reader) == [15, 16, 17, 18, 19]
    assert not reader.following
    reader.scroll(1)
    assert reader.following


def test_up_puts_the_cursor_on_the_line_above_the_last() -> None:
    reader = reader_of(lines(20))
    reader.move_cursor(-1)
    assert not reader.following
    assert cursor_text(reader) == "line 018"
    assert numbers(reader) == [15, 16, 17, 18, 19]
    for _ in range(5):
        reader.move_cursor(-1)
    assert cursor_text(reader) == "line 013"
    assert numbers(reader) == [13, 14, 15, 16, 17]
    for _ in range(30):
        reader.move_cursor(-1)
    assert cursor_text(reader) == "line 000"
    assert numbers(reader) == [0, 1, 2, 3, 4]


def test_down_reaches_the_end_and_then_follows() -> None:
    reader = reader_of(lines(20))
    reader.first()
    assert cursor_text(reader) == "line 000"
    for expected in range(1, 20):
        reader.move_cursor(1)
        assert cursor_text(reader) == f"line {expected:03d}"
        assert expected in numbers(reader)
    reader.move_cursor(1)
    assert reader.following


def test_the_cursor_stays_on_the_screen() -> None:
    reader = reader_of(lines(50))
    reader.move_cursor(-1)
    reader.scroll(-20)
    assert cursor_text(reader) == f"line {numbers(reader)[-1]:03d}"
    reader.first()
    reader.scroll(20)
    assert cursor_text(reader) == f"line {numbers(reader)[0]:03d}"


def test_a_line_higher_than_the_screen_is_scrolled_through() -> None:
    tall = "".join(chr(ord("a") + index // 10) for index in range(120)).encode()
    reader = reader_of(b"before\n" + tall + b"\nafter\n", width=10, height=4)
    reader.first()
    seen = set()
    for _ in range(20):
        seen.update(shown(reader))
        if reader.following:
            break
        reader.move_cursor(1)
    assert {"before", "after", *(letter * 10 for letter in "abcdefghijkl")} <= seen
    assert reader.following
    for _ in range(20):
        reader.move_cursor(-1)
    assert shown(reader)[0] == "before"


def test_wrapping_keeps_the_line_at_the_top() -> None:
    data = b"".join(b"%03d " % number + b"w" * 30 + b"\n" for number in range(40))
    reader = reader_of(data, width=10, height=6)
    assert shown(reader) == ["wwwwwwwwww", "wwww", "039 wwwwww", "wwwwwwwwww", "wwwwwwwwww", "wwww"]
    reader.go(data.index(b"020"))
    assert shown(reader)[0].startswith("020")
    reader.toggle_wrap()
    assert [text[:3] for text in shown(reader)] == ["020", "021", "022", "023", "024", "025"]
    reader.side(1)
    assert reader.x == 8
    reader.side(-5)
    assert reader.x == 0
    reader.toggle_wrap()
    assert shown(reader)[0].startswith("020")


def test_a_narrower_screen_keeps_the_top_while_the_cursor_is_on_it() -> None:
    reader = reader_of(b"".join(b"%03d " % number + b"w" * 30 + b"\n" for number in range(40)), width=80)
    reader.go(20 * 35)
    reader.jump(20 * 35)
    reader.resize(9, 8)
    assert shown(reader)[0].startswith("020")


def test_what_is_missing_is_asked_for() -> None:
    feed = Wishes()
    data = lines(2_000)
    feed.window.grow(len(data))
    feed.window.add(len(data) - 900, data[-900:])
    reader = Reader(feed)
    reader.resize(20, 5)
    reader.arrange()
    assert not feed.wishes
    reader.scroll(-3)  # near the edge of what is known
    assert feed.wishes[-1] == (len(data) - 901, Toward.EARLIER)
    reader.scroll(-2_000)
    assert isinstance(reader.rows[0].item, Hole)
    before = shown(reader)[1:]
    offset, toward = feed.wishes[-1]
    assert toward is Toward.EARLIER
    # What is filled in above leaves what is read where it is: the hole's row becomes a line.
    feed.window.add(offset - 5_000, data[offset - 5_000 : offset + 1])
    reader.arrange()
    assert shown(reader)[1:] == before
    assert shown(reader)[0] != "<hole>"


def test_a_jump_into_the_unknown_waits_for_its_line() -> None:
    feed = Wishes()
    data = lines(2_000)
    feed.window.grow(len(data))
    feed.window.add(len(data) - 900, data[-900:])
    reader = Reader(feed)
    reader.resize(20, 6)
    reader.arrange()
    target = data.index(b"line 1000")
    reader.jump(target + 3)
    assert shown(reader)[0] == "<hole>"
    assert feed.wishes[-1] == (target + 3, Toward.AROUND)
    feed.window.add(target - 500, data[target - 500 : target + 500])
    reader.arrange()
    assert cursor_text(reader) == "line 1000"
    assert numbers(reader) == [998, 999, 1000, 1001, 1002, 1003]
    reader.scroll(-1)  # not pulled back
    assert numbers(reader)[0] == 997


def test_a_jump_to_what_is_in_view_does_not_scroll() -> None:
    reader = reader_of(lines(50))
    reader.go(200)
    before = numbers(reader)
    reader.jump(reader.rows[2].item.start + 2)
    assert numbers(reader) == before
    assert cursor_text(reader) == f"line {before[2]:03d}"


@pytest.mark.parametrize("wanted", [0, 0.3, 0.9])
def test_the_bar_touches_an_end_only_there(wanted: float) -> None:
    reader = reader_of(lines(500), height=20)
    thumb = reader.thumb()
    assert thumb is not None
    assert thumb[1] == 20
    reader.go(int(wanted * reader.window.size))
    thumb = reader.thumb()
    assert thumb is not None
    assert (thumb[0] == 0) == (wanted == 0)
    assert thumb[1] < 20
    assert thumb[0] == pytest.approx(wanted * 20, abs=1.5)


def test_marked_lines_and_characters_are_what_is_copied() -> None:
    reader = reader_of(lines(20))
    assert reader.marked_text() == ("line 019", 1)
    reader.go(0)
    reader.jump(9)
    reader.mark()
    reader.move_cursor(1)
    reader.move_cursor(1)
    assert reader.marked_text() == ("line 001\nline 002\nline 003", 3)
    reader.mark()
    assert reader.selection is None
    start, end = reader.point_at(5, 2), reader.point_at(4, 0)
    assert start is not None
    assert end is not None
    reader.select(start, end)
    assert reader.marked_text() == (" 000\nline 001\nline ", 3)


def test_a_point_in_wide_characters() -> None:
    reader = reader_of("損失 0.31\n".encode(), width=6)
    assert shown(reader) == ["損失 0", ".31"]
    assert [reader.point_at(x, 0) for x in (0, 1, 2, 3, 4, 5, 9)] == [
        Point(0, at) for at in (0, 0, 1, 1, 2, 3, 4)
    ]
    assert reader.point_at(1, 1) == Point(0, 5)


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_whatever_is_pressed_the_rows_are_consecutive_lines(seed: int, width: int, height: int) -> None:
    chance = random.Random(seed)
    data = b"".join(bytes(chance.choices(b"ab \r", k=chance.randint(0, 60))) + b"\n" for _ in range(60))
    feed = Wishes(max_bytes=1 << 20)
    feed.window.grow(len(data))
    for _ in range(6):
        start = chance.randrange(len(data))
        feed.window.add(start, data[start : start + chance.randint(1, 900)])
    reader = Reader(feed)
    reader.resize(width, height)
    reader.arrange()
    for _ in range(40):
        action = chance.randrange(9)
        if action == 0:
            reader.scroll(chance.choice([-1, 1, -height, height, 3, -3]))
        elif action == 1:
            reader.move_cursor(chance.choice([-1, 1]))
        elif action == 2:
            reader.jump(chance.randrange(reader.window.size))
        elif action == 3:
            reader.toggle_wrap()
        elif action == 4:
            reader.resize(chance.randint(1, 40), chance.randint(1, 15))
        elif action == 5:
            feed.window.add(feed.window.size, b"more\n" * chance.randint(1, 9))
        elif action == 6:
            start = chance.randrange(len(data))
            feed.window.add(start, data[start : start + 500])
        elif action == 7:
            chance.choice([reader.first, reader.follow, reader.stop_following, reader.mark])()
        else:
            reader.go(chance.randrange(reader.window.size))
        reader.arrange()
        assert reader.rows
        for above, below in zip(reader.rows, reader.rows[1:], strict=False):
            if above.last:
                assert below.item.start == above.item.end
                assert below.part == 0
            else:
                assert (below.item, below.part) == (above.item, above.part + 1)
        total_known = reader.rows[0].item.start == 0 and reader.rows[0].part == 0 and reader.at_end
        assert len(reader.rows) == reader._height or total_known
        if reader.cursor is not None:
            assert 0 <= reader.cursor <= reader.window.size
        thumb = reader.thumb()
        assert thumb is None or 0 <= thumb[0] < thumb[1] <= reader._height


def test_the_cursor_stays_in_view_when_the_width_changes() -> None:
    reader = reader_of(
        b"".join(b"%03d " % number + b"w" * 30 + b"\n" for number in range(40)), width=80, height=8
    )
    reader.move_cursor(-1)
    assert cursor_text(reader).startswith("038")
    reader.resize(12, 8)
    assert any(text.startswith("038") for text in shown(reader))
    reader.scroll(-5)
    reader.resize(80, 8)
    assert any(cursor_text(reader) == text for text in shown(reader))
