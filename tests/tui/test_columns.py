"""Which columns fit, and that a row is exactly as wide as they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tui.widgets.columns import MARGIN, Cell, Column, fit, heads, line, width_of
from tui.widgets.toned import length

COLUMNS = [
    Column("mark", "", 1, keep=9, gap=0),
    Column("name", "NAME", 6, keep=8, widest=12, gap=1),
    Column("size", "SIZE", 5, right=True, keep=1),
    Column("age", "AGE", 4, right=True, keep=7),
]


def test_the_least_important_column_goes_first() -> None:
    assert [slot.column.key for slot in fit(COLUMNS, 21)] == ["mark", "name", "size", "age"]
    assert [slot.column.key for slot in fit(COLUMNS, 20)] == ["mark", "name", "age"]
    assert [slot.column.key for slot in fit(COLUMNS, 8)] == ["mark", "name"]
    assert fit(COLUMNS, 0) == ()


def test_room_goes_to_what_grows_and_then_before_the_last_column() -> None:
    slots = fit(COLUMNS, 24)
    assert width_of(slots, "name") == 9
    slots = fit(COLUMNS, 30)
    assert (width_of(slots, "name"), width_of(slots, "age")) == (12, 7)
    assert width_of(fit(COLUMNS, 200), "age") == 4


def test_a_column_that_is_not_shown_has_no_width() -> None:
    assert width_of(fit(COLUMNS, 8), "size") == 0


CELLS: st.SearchStrategy[Cell] = st.one_of(
    st.text(st.characters(categories=["L", "N"]), max_size=20),
    st.tuples(st.text("ab漢", max_size=20), st.just("good")),
    st.lists(st.tuples(st.text("xy漢", max_size=8), st.just("")), max_size=4),
)


@given(st.dictionaries(st.sampled_from(["mark", "name", "size", "age"]), CELLS), st.integers(0, 60))
def test_every_row_is_as_wide_as_its_head(row: dict[str, Cell], width: int) -> None:
    slots = fit(COLUMNS, width)
    assert length(line(slots, row)) == length(heads(slots)) <= max(width, MARGIN + width)


def test_numbers_are_at_the_right_and_words_at_the_left() -> None:
    text = "".join(
        part for part, _ in line(fit(COLUMNS, 21), {"name": "abc", "size": [("9", "good"), ("8", "")]})
    )
    assert text == "  abc        98      "


def test_a_stale_row_has_one_tone() -> None:
    row: dict[str, Cell] = {"name": ("a", "good"), "size": [("9", "good"), ("8", "bad")], "age": "1 s"}
    assert {tone for text, tone in line(fit(COLUMNS, 21), row, "quiet") if text.strip()} == {"quiet"}
