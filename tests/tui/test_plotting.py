"""Plots on ranges that are fixed and never move silently."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui import plotting

VALUES = st.lists(st.none() | st.floats(-200, 300), max_size=80)


@pytest.mark.parametrize(
    ("value", "ceiling"),
    [
        (5.5, 6),
        (6.0, 6),
        (6.01, 8),
        (10.9, 12),
        (412_000, 500_000),
        (0.0031, 0.004),
        (0, 1),
        (-3, 1),
        (1.0, 1),
    ],
)
def test_ranges_end_at_round_numbers(value: float, ceiling: float) -> None:
    assert plotting.nice_ceiling(value) == pytest.approx(ceiling)


@given(st.floats(1e-9, 1e15))
def test_a_ceiling_is_above_but_not_far_above(value: float) -> None:
    assert value * (1 - 1e-6) <= plotting.nice_ceiling(value) <= value * 2.01


def test_a_constant_half_is_drawn_half_high_not_empty_and_not_full() -> None:
    lines = plotting.area([50.0] * 8, 4, 2, 0, 100)
    assert lines == ["    ", "⣿⣿⣿⣿"]


def test_zero_shows_that_it_was_measured_and_none_that_it_was_not() -> None:
    assert plotting.history([None, None, 0.0, 0.0], 2) == " ⣀"


def test_the_newest_value_is_at_the_right() -> None:
    assert plotting.history([100.0], 3) == "  ⢸"


def test_small_changes_near_the_top_stay_small() -> None:
    assert plotting.history([98.0, 99.0, 98.0, 99.0], 2) == "⣿⣿"


@given(VALUES, st.integers(1, 30), st.integers(1, 6))
def test_every_plot_fills_its_cells(values: list[float | None], width: int, height: int) -> None:
    for draw in (plotting.area, plotting.curve):
        lines = draw(values, width, height, 0, 100)
        assert len(lines) == height
        assert all(len(line) == width for line in lines)


@given(VALUES, st.integers(1, 20))
def test_what_is_known_is_drawn(values: list[float | None], width: int) -> None:
    text = plotting.history(values, width)
    shown = values[-2 * width :]
    assert (text.strip() != "") == any(value is not None for value in shown)


def test_a_curve_has_no_gaps_between_neighbours() -> None:
    lines = plotting.curve([0.0, 100.0], 1, 2, 0, 100)
    assert lines == ["⢸", "⡸"]


def test_buckets_keep_their_places_until_their_width_doubles() -> None:
    before, start, width = plotting.buckets([(step, float(step)) for step in range(8)], 8)
    assert (before, start, width) == ([0, 1, 2, 3, 4, 5, 6, 7], 0, 1)
    after, start, width = plotting.buckets([(step, float(step)) for step in range(9)], 8)
    assert (start, width) == (0, 2)
    assert after == [0.5, 2.5, 4.5, 6.5, 8]


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.none() | st.floats(-5, 5)), max_size=200),
    st.integers(1, 50),
)
def test_buckets_never_exceed_their_columns(points: list[tuple[int, float | None]], columns: int) -> None:
    values, _start, width = plotting.buckets(sorted(points, key=lambda point: point[0]), columns)
    assert len(values) <= columns
    known = [y for _, y in points if y is not None]
    assert bool(values) == bool(known)
    assert width == 0 or math.log2(width).is_integer()


def test_steps_without_a_value_leave_a_gap() -> None:
    values, _, _ = plotting.buckets([(0, 1.0), (1, None), (2, math.nan), (3, 2.0)], 8)
    assert values == [1.0, None, None, 2.0]


def test_a_rank_that_reports_now_and_then_has_a_curve_without_gaps() -> None:
    values, _, _ = plotting.buckets([(0, 5.0), (4, 3.0), (8, None), (10, 1.0)], 16)
    assert values == [5.0, 3.0, 3.0, 3.0, 3.0, None, None, None, None, 1.0, 1.0]


def test_a_window_ends_at_the_newest_value() -> None:
    values = plotting.window([(100.0 + second, float(second)) for second in range(10)], 5, 5)
    assert values == [5, 6, 7, 8, 9]


def test_a_window_averages_into_fixed_columns() -> None:
    points: list[tuple[float, float | None]] = [(100.0 + second, float(second)) for second in range(10)]
    before = plotting.window(points, 5, 10)
    after = plotting.window([*points, (110.0, 10.0)], 5, 10)
    assert before == [0.5, 2.5, 4.5, 6.5, 8.5]
    assert after == [2.5, 4.5, 6.5, 8.5, 10]


def test_an_empty_window_is_empty() -> None:
    assert plotting.window([], 4, 10) == [None] * 4
    assert plotting.window([(1.0, 1.0)], 0, 10) == []


def test_a_range_only_grows_and_counts_it() -> None:
    spread = plotting.Range()
    assert spread.include([5.5])
    assert (spread.top, spread.bottom, spread.grown) == (6, 0, 0)
    assert not spread.include([1.0, None, math.nan, math.inf])
    assert spread.include([7.0])
    assert (spread.top, spread.grown) == (8, 1)
    assert not spread.include([0.1])
    assert spread.top == 8


def test_a_range_takes_in_what_is_below_zero() -> None:
    spread = plotting.Range()
    spread.include([-3.0, 2.0])
    assert (spread.bottom, spread.top) == (-3, 2)
