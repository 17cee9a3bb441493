"""The window shows the same lines whatever the order, size and overlap in which a log's bytes arrive."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tui.fleet.log_bytes import KEPT_EDGE, LONG_LINE, LogBytes
from tui.fleet.log_window import SHOWN_BYTES, WHOLE_BYTES, Hole, Item, Line, LogWindow
from tui.fleet.sanitize import Sgr


def items(window: LogWindow) -> Iterator[Item]:
    """All lines and holes from the first byte to the last."""
    offset = 0
    while offset < window.size:
        item = window.item_at(offset)
        assert item.start <= offset < item.end
        yield item
        offset = item.end


def texts(window: LogWindow) -> list[str]:
    """What is shown, a hole as `None`-like mark."""
    return [window.shown(item).text if isinstance(item, Line) else "<hole>" for item in items(window)]


def model_items(data: bytes, known: list[bool]) -> list[Item]:
    """The lines of `data`, all of whose bytes (and whose predecessor's newline) are known; the rest as holes.

    A known newline parts two holes.
    """
    result: list[Item] = []
    start = 0
    for piece in _lines(data):
        end = start + len(piece)
        if all(known[start:end]) and (start == 0 or known[start - 1]):
            result.append(Line(start, end, not piece.endswith(b"\n")))
        elif result and isinstance(result[-1], Hole) and not known[start - 1]:
            result[-1] = Hole(result[-1].start, end, result[-1].missing)
        else:
            result.append(Hole(start, end, ((0, 0), (0, 0))))
        start = end
    return [_with_missing(item, known) if isinstance(item, Hole) else item for item in result]


def _lines(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _with_missing(hole: Hole, known: list[bool]) -> Hole:
    ranges: list[tuple[int, int]] = []
    for offset in range(hole.start, hole.end):
        if not known[offset]:
            if ranges and ranges[-1][1] == offset:
                ranges[-1] = (ranges[-1][0], offset + 1)
            else:
                ranges.append((offset, offset + 1))
    return Hole(hole.start, hole.end, (ranges[0], ranges[-1]))


def model_text(line: bytes) -> str:
    """What a reader should see of one short line without escapes."""
    line = line.removesuffix(b"\n")
    while line.endswith(b"\r"):
        line = line[:-1]
    return line.split(b"\r")[-1].decode("utf-8", "replace")


FRAGMENTS = [
    b"\n",
    b"a",
    b"bc",
    b"step 1\n",
    b"\r",
    b"50%\r",
    b"\r\n",
    b"\xc3\xa9",
    b"\xe6\x90\x8d\n",
    b"\xff",
    b"\xe6",
]
LOGS = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=60).map(b"".join)


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int]]]:
    """A log, and ranges of it in the order in which they arrive; some overlap, some bytes never come."""
    data = draw(LOGS)
    cuts = draw(st.lists(st.tuples(st.integers(0, len(data)), st.integers(0, 20)), max_size=20))
    return data, [(start, min(len(data), start + length)) for start, length in cuts]


@given(arrivals())
def test_lines_are_those_whose_bytes_are_known(case: tuple[bytes, list[tuple[int, int]]]) -> None:
    data, ranges = case
    window = LogWindow()
    window.grow(len(data))
    known = [False] * len(data)
    for start, end in ranges:
        window.add(start, data[start:end])
        known[start:end] = [True] * (end - start)
        assert list(items(window)) == model_items(data, known)
    for item in items(window):
        for offset in range(item.start, item.end):
            assert window.item_at(offset) == item
    everything = window.known.newlines(0, len(data))
    assert everything == (data.count(b"\n") if all(known) else None)


@given(LOGS, st.randoms(use_true_random=False))
def test_any_chunking_in_any_order_gives_the_same_lines(data: bytes, chance: random.Random) -> None:
    cuts = sorted({0, len(data), *(chance.randint(0, len(data)) for _ in range(8))})
    ranges = list(pairwise(cuts))
    chance.shuffle(ranges)
    window = LogWindow()
    for start, end in ranges:
        window.add(start, data[start:end])
    lines = [model_text(line) for line in _lines(data)]
    if data.rstrip(b"\r").endswith(b"\xe6"):
        lines[-1] = lines[-1][:-1]  # a character of which only the first byte has come
    assert texts(window) == lines


@given(LOGS)
def test_byte_by_byte_the_last_line_is_shown_as_it_grows(data: bytes) -> None:
    window = LogWindow()
    for offset in range(len(data)):
        window.add(offset, data[offset : offset + 1])
        line = window.item_at(offset)
        assert isinstance(line, Line)
        assert line.open == (data[offset : offset + 1] != b"\n")
        whole = model_text(data[line.start : offset + 1])
        assert whole.startswith(window.shown(line).text)
        assert len(whole) - len(window.shown(line).text) <= 1  # a character of which only half has come
    assert window.known.read(0, len(data)) == data


@given(st.data())
@settings(max_examples=50)
def test_memory_is_bounded_and_what_was_dropped_can_come_back(data: st.DataObject) -> None:
    chance = random.Random(data.draw(st.integers()))
    log = b"".join(b"%d " % n + b"x" * chance.randint(0, 3000) + b"\n" for n in range(300))
    window = LogWindow(max_bytes=100_000)
    position = 0
    while position < len(log):
        chunk = log[position : position + chance.randint(1, 40_000)]
        window.add(position, chunk)
        position += len(chunk)
        assert window.known.held <= 100_000
    assert isinstance(window.item_at(len(log) - 1), Line)
    for _ in range(10):
        offset = chance.randrange(len(log))
        window.known.focus = (offset, offset + 1)
        for _ in range(20):
            item = window.item_at(offset)
            if isinstance(item, Line):
                break
            start, end = item.missing[0] if item.missing[0][1] > offset else item.missing[1]
            start = max(start, min(offset - 4000, end - 1))
            window.add(start, log[start : min(end, start + 8000)])
            assert window.known.held <= 100_000
        line = window.item_at(offset)
        assert isinstance(line, Line)
        assert window.shown(line).text == model_text(log[line.start : line.end])


def test_a_carriage_return_leaves_the_last_state() -> None:
    window = LogWindow()
    window.add(0, b"\r  0%|    | 0/9\r 50%|##  | 4/9")
    assert texts(window) == [" 50%|##  | 4/9"]
    window.add(window.size, b"\r100%|####| 9/9\r")
    assert texts(window) == ["100%|####| 9/9"]
    window.add(window.size, b"\n")
    assert texts(window) == ["100%|####| 9/9"]
    assert window.known.read(0, 4) == b"\r  0"


def test_a_cleared_bar_is_gone() -> None:
    window = LogWindow()
    window.add(0, b"\r 99%|### |\r           \rdone\r\nnext\r\n")
    assert texts(window) == ["done", "next"]


def test_escapes_do_not_come_through_and_colours_do() -> None:
    window = LogWindow()
    window.add(0, b"\x1b]0;owned\x07\x1b[31mred\x1b[0m\x1b[2J plain\x00\xc2\x9b1A\n")
    line = window.item_at(0)
    assert isinstance(line, Line)
    assert window.shown(line).pieces == (("red", Sgr(foreground=1)), (" plain", Sgr()))


@pytest.mark.parametrize("chunk", [1_000, 96 * 1024, 20_000_000])
def test_a_line_of_ten_megabytes_costs_little(chunk: int) -> None:
    long = b"before\n" + b"0123456789" * 1_000_000
    window = LogWindow()
    for offset in range(0, len(long), chunk):
        window.add(offset, long[offset : offset + chunk])
        assert window.known.held <= 2 * LONG_LINE + 3 * KEPT_EDGE or chunk > LONG_LINE
    window.add(len(long), b"\nafter\n")
    assert window.known.held < 3 * KEPT_EDGE
    before, line, after = items(window)
    assert isinstance(line, Line)
    shown = window.shown(line)
    assert shown.text == ("0123456789" * 500)[:SHOWN_BYTES]
    assert shown.note == "… 10.0 MB line, showing 4 KiB"
    assert [window.shown(item).text for item in (before, after) if isinstance(item, Line)] == [
        "before",
        "after",
    ]


def test_a_long_line_that_arrives_backwards_costs_little_too() -> None:
    data = b"before\n" + b"x" * 3_000_000 + b"\nafter\n"
    window = LogWindow()
    for end in range(len(data), 0, -96 * 1024):
        start = max(0, end - 96 * 1024)
        window.add(start, data[start:end])
    assert window.known.held < 200_000
    notes = [window.shown(item).note for item in items(window) if isinstance(item, Line)]
    assert notes == ["", "… 3.0 MB line, showing 4 KiB", ""]


@given(st.integers(0, 3), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_long_lines_look_the_same_in_any_order(long_lines: int, seed: int) -> None:
    chance = random.Random(seed)
    parts = [b"short %d\n" % n for n in range(30)]
    for _ in range(long_lines):
        parts.insert(
            chance.randint(0, 30), bytes(chance.choices(b"xyz", k=100)) * chance.randint(1, 4_000) + b"\n"
        )
    data = b"".join(parts)
    in_order = LogWindow()
    in_order.add(0, data)
    cuts = sorted({0, len(data), *(chance.randint(0, len(data)) for _ in range(12))})
    ranges = list(pairwise(cuts))
    chance.shuffle(ranges)
    window = LogWindow()
    for start, end in ranges:
        window.add(start, data[start:end])
    assert [(i, window.shown(i)) for i in items(window) if isinstance(i, Line)] == [
        (i, in_order.shown(i)) for i in items(in_order) if isinstance(i, Line)
    ]
    assert not [item for item in items(window) if isinstance(item, Hole)]


def test_a_progress_bar_that_never_ends_its_line_keeps_its_last_state() -> None:
    window = LogWindow()
    for step in range(20_000):
        window.add(window.size, b"\r step %d of 20000" % step)
    assert texts(window) == [" step 19999 of 20000"]
    assert window.known.held < 2 * LONG_LINE
    window.add(window.size, b"\ndone\n")
    assert texts(window) == [" step 19999 of 20000", "done"]


@pytest.mark.parametrize(
    "length", [WHOLE_BYTES - 1, WHOLE_BYTES, WHOLE_BYTES + 1, LONG_LINE, LONG_LINE + 1, LONG_LINE * 3]
)
def test_cutting_starts_above_the_limit(length: int) -> None:
    window = LogWindow()
    window.add(0, b"z" * length + b"\n")
    line = window.item_at(0)
    assert isinstance(line, Line)
    shown = window.shown(line)
    assert len(shown.text) == (length if length <= WHOLE_BYTES else SHOWN_BYTES)
    assert bool(shown.note) == (length > WHOLE_BYTES)


def test_a_character_is_not_cut_in_half_for_display() -> None:
    window = LogWindow()
    window.add(0, b"z" + "損".encode() * 20_000 + b"\n")
    line = window.item_at(0)
    assert isinstance(line, Line)
    assert "\ufffd" not in window.shown(line).text


def test_a_hole_is_filled_from_either_side() -> None:
    data = b"".join(b"line %02d\n" % n for n in range(50))
    window = LogWindow()
    window.add(0, data[:36])
    window.gap(36, 300)
    window.add(300, data[300:])
    hole = next(item for item in items(window) if isinstance(item, Hole))
    assert (hole.start, hole.end) == (32, 304)
    assert hole.missing == ((36, 300), (36, 300))
    assert hole.unknown_bytes == 264
    window.add(250, data[250:300])
    window.add(36, data[36:100])
    hole = next(item for item in items(window) if isinstance(item, Hole))
    assert (hole.start, hole.end) == (96, 256)
    window.add(90, data[90:260])
    assert texts(window) == [f"line {n:02d}" for n in range(50)]


def test_a_hole_in_a_long_line_needs_only_its_edges() -> None:
    data = b"first\n" + b"q" * 5_000_000 + b"\nlast\n"
    window = LogWindow()
    window.grow(len(data))
    window.add(len(data) - 20_000, data[-20_000:])
    hole = window.item_at(len(data) - 10_000)
    assert isinstance(hole, Hole)
    window.no_newline(6, hole.missing[1][1])
    hole = window.item_at(len(data) - 10_000)
    assert isinstance(hole, Hole)
    assert hole.missing[0] == (0, 6 + KEPT_EDGE)
    for start, end in hole.missing:
        window.add(start, data[start:end])
    assert [window.shown(i).note for i in items(window) if isinstance(i, Line)] == [
        "",
        "… 5.0 MB line, showing 4 KiB",
        "",
    ]


def test_arrival_times_belong_to_what_was_seen_to_come() -> None:
    window = LogWindow()
    window.add(100, b"old\n" * 5)
    window.add(120, b"one\n", 1000.0)
    window.add(124, b"two\n", 1000.01)
    window.gap(128, 200)
    window.add(200, b"three\n", 1002.0)
    window.add(128, b"fetched\n")
    assert [window.arrived(offset) for offset in (0, 119, 120, 124, 128, 199, 200)] == [
        None,
        None,
        1000.0,
        1000.0,
        None,
        None,
        1002.0,
    ]


@given(
    st.lists(st.sampled_from([b"ab", b"a", b"B", b"\n", b"abc"]), min_size=1, max_size=40).map(b"".join),
    st.sampled_from([b"a", b"ab", b"abc", b"ba", b"\n", b"zz"]),
    st.booleans(),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_search_finds_what_bytes_find_would(
    data: bytes, needle: bytes, backward: bool, fold: bool, chance: random.Random
) -> None:
    known = LogBytes()
    position = 0
    while position < len(data):
        step = chance.randint(1, 5)
        known.add(position, data[position : position + step])
        # Keep the pieces apart, as they are when they come in any order.
        known.elide(0, 0)
        position += step
    offset = chance.randint(0, len(data))
    haystack, wanted = (data.lower(), needle.lower()) if fold else (data, needle)
    if backward:
        expected = haystack.rfind(wanted, 0, offset + len(wanted) - 1)
    else:
        expected = haystack.find(wanted, offset)
    found, going_on = known.find(needle, offset, backward=backward, ignore_case=fold)
    assert found == (expected if expected >= 0 else None)
    if found is None:
        assert going_on == (0 if backward else max(offset, len(data) - len(needle) + 1))


@given(arrivals(), st.sampled_from([b"a", b"bc", b"1\n", b"\r\n"]), st.booleans())
def test_search_stops_where_it_does_not_know(
    case: tuple[bytes, list[tuple[int, int]]], needle: bytes, backward: bool
) -> None:
    """Going on from where it stopped, with all the bytes at hand, finds the match that there is."""
    data, ranges = case
    known = LogBytes()
    known.grow(len(data))
    for start, end in ranges:
        known.add(start, data[start:end])
    for offset in range(len(data) + 1):
        found, going_on = known.find(needle, offset, backward=backward, ignore_case=False)
        if found is None:
            if backward:
                found = data.rfind(needle, 0, going_on + len(needle) - 1)
            else:
                found = data.find(needle, going_on)
        expected = data.rfind(needle, 0, offset + len(needle) - 1) if backward else data.find(needle, offset)
        assert found == expected
