"""Numbers, times and states as they are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from agent import wire
from tui import formatting as fmt
from tui.theme import TONES


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "?"), (0, "0"), (999, "999"), (12431, "12 431"), (1234567, "1 234 567")],
)
def test_counts_have_their_thousands_apart(value: int | None, text: str) -> None:
    assert fmt.count(value) == text


@pytest.mark.parametrize(
    ("used", "total", "text"),
    [
        (21.9, 24.0, "21.9/24 G"),
        (176.2, 192.0, "176/192 G"),
        (4.0, 128.0, "4.0/128 G"),
        (None, 24.0, "?/24 G"),
        (21.86, None, "21.9 G"),
        (99.96, 128.0, "100/128 G"),
    ],
)
def test_memory_is_in_gib(used: float | None, total: float | None, text: str) -> None:
    known = None if used is None else used * fmt.GIB
    assert fmt.gib(known, None if total is None else total * fmt.GIB) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (812, "812 B"), (42_190, "41.2 K"), (1024**2 * 3.5, "3.5 M"), (1024**3 * 120, "120 G")],
)
def test_sizes_take_the_unit_that_keeps_them_short(value: float, text: str) -> None:
    assert fmt.size(value) == text


@given(st.integers(0, 2**60))
def test_no_size_is_longer_than_its_column(value: int) -> None:
    assert len(fmt.size(value)) <= 6


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (412.3, "412"),
        (41.23, "41.2"),
        (4.123, "4.12"),
        (412_345, "412 k"),
        (999_600, "1.00 M"),
        (2.5e9, "2.50 G"),
    ],
)
def test_rates_have_three_digits(value: float, text: str) -> None:
    assert fmt.si(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "?"),
        (2.9141, "2.914"),
        (10.891, "10.89"),
        (123.4, "123.4"),
        (2e-5, "2.00e-05"),
        (1e7, "1.00e+07"),
    ],
)
def test_losses(value: float | None, text: str) -> None:
    assert fmt.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.0, "1 s"), (0.2, "1 s"), (1.0, "1 s"), (1.01, "2 s"), (42.3, "43 s"), (240.0, "4 min")],
)
def test_an_age_is_never_claimed_to_be_smaller_than_it_is(seconds: float | None, text: str) -> None:
    assert fmt.age(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (252, "4 min 12 s"),
        (3 * 3600 + 300, "3 h 05 min"),
        (3 * 86400 + 7200, "3 d 2 h"),
        (-5, "0 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert fmt.duration(seconds) == text


def test_a_time_of_another_day_says_its_date() -> None:
    now = 1_700_000_000.0
    assert len(fmt.clock(now - 3600, now)) == 5
    assert len(fmt.clock(now - 3 * 86400, now)) == 12


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (None, "    "),
        (0.0, "▏   "),
        (0.5, "██  "),
        (1.0, "████"),
        (1.7, "████"),
        (-1.0, "▏   "),
        (0.97, "███▉"),
    ],
)
def test_bars_have_eighths(fraction: float | None, text: str) -> None:
    assert fmt.bar(fraction, 4) == text


@given(st.none() | st.floats(-2, 3), st.integers(0, 40))
def test_a_bar_is_as_wide_as_asked(fraction: float | None, width: int) -> None:
    assert cell_len(fmt.bar(fraction, width)) == width


@given(st.floats(-10, 200))
def test_every_percentage_has_a_level(value: float) -> None:
    assert fmt.level(value) in fmt.LEVELS


def test_levels_are_in_order() -> None:
    assert [fmt.level(value) for value in (0, 20, 50, 99, 100)] == ["▁", "▂", "▄", "▇", "▇"]


def test_folding_averages_neighbours_and_keeps_the_unknown() -> None:
    assert fmt.fold([1, 2, 3, 4], 8) == [1, 2, 3, 4]
    assert fmt.fold([0, 100, 50, 50], 2) == [50, 50]
    assert fmt.fold([None, None, 1, 3], 2) == [None, 2]
    assert fmt.fold([1, 2], 0) == []


@given(st.text(max_size=40), st.integers(0, 30))
def test_clipped_text_never_takes_more_cells(text: str, width: int) -> None:
    if text.isprintable():
        assert cell_len(fmt.clip(text, width)) <= width
        assert cell_len(fmt.pad(text, width)) == width
        assert cell_len(fmt.pad(text, width, right=True)) == width


def test_wide_letters_are_padded_by_their_cells() -> None:
    assert fmt.pad("漢字", 6) == "漢字  "
    assert fmt.pad("漢字漢字", 5) == "漢字…"


def test_parts_that_do_not_fit_are_left_out_or_cut() -> None:
    parts = ["since 14:02", "last seen 4 min ago", "retry"]
    assert fmt.join_fitting(parts, 80) == "since 14:02 · last seen 4 min ago · retry"
    assert fmt.join_fitting(parts, 20) == "since 14:02 · retry"
    assert fmt.join_fitting(["x" * 60], 20) == "x" * 19 + "…"
    assert fmt.join_fitting(parts, 3) == ""


def test_every_state_of_the_wire_has_a_mark_of_its_own_word() -> None:
    for state in wire.RUN_STATES:
        mark = fmt.run_mark(state)
        assert mark.word == state
        assert mark.tone in TONES
    for state in wire.RANK_STATES:
        assert fmt.rank_mark(state, None).tone in TONES


def test_states_that_look_alike_differ_without_colour() -> None:
    marks = [fmt.run_mark(state) for state in wire.RUN_STATES]
    assert len({(mark.glyph, mark.word) for mark in marks}) == len(marks)
    assert fmt.rank_mark("exited", 0).glyph != fmt.rank_mark("exited", 1).glyph


def test_unknown_states_say_so() -> None:
    assert fmt.run_mark("quantum").glyph == "?"
    assert fmt.rank_mark("", None) == fmt.Mark("?", "unknown", "unknown")


def test_exit_codes_as_people_say_them() -> None:
    assert fmt.rank_mark("exited", 3).word == "exit 3"
    assert fmt.rank_mark("exited", -9).word == "signal 9"
    assert fmt.rank_mark("lost", None).tone == fmt.TROUBLE
    assert fmt.rank_mark("lost", None, stopped=True) == fmt.Mark("○", "stopped", fmt.QUIET)


def test_names_of_gpus_lose_what_all_have() -> None:
    assert fmt.short_gpu_name("NVIDIA GeForce RTX 4090") == "RTX 4090"
    assert fmt.short_gpu_name("NVIDIA") == "NVIDIA"


def test_messages_become_sentences() -> None:
    assert fmt.sentences("no python here", "install one") == "no python here. install one."
    assert fmt.sentences("No route.", "") == "No route."
    assert fmt.sentences("", "Try again!") == "Try again!"
