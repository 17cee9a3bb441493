"""Whatever a host sends, only printable text and colours come out."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tui.fleet.sanitize import MAX_COMBINING, PLAIN, Sgr, printable, styled

FRAGMENTS = st.sampled_from(
    [
        *(
            "\x1b",
            "\x1b[",
            "\x1b]",
            "\x1b[31m",
            "\x1b[0m",
            "\x1b]0;title\x07",
            "\x1b]8;;http://x\x1b\\",
            "\x1bP",
        ),
        *(
            "\x1bc",
            "\x9b",
            "\x9d",
            "\x9c",
            "\x07",
            "\x1b\\",
            "\r",
            "\n",
            "\t",
            "\0",
            "\x7f",
            "\x85",
            "m",
            ";",
        ),
        *("\u202e", "\u2066", "\u200b", "\u200d", "\ufeff", "\ud800", "\udfff", "\ue000", "\U000e0041"),
        *("e\u0301", "\u0301" * 9, "漢", "👍🏽", "é"),
    ]
)
ANYTHING = st.lists(st.text(st.characters(codec=None), max_size=8) | FRAGMENTS, max_size=12).map("".join)


@given(ANYTHING)
@example("\x1b[1;31m\x1b]52;c;aGk=\x07x")
def test_nothing_but_printable_text_comes_out(text: str) -> None:
    assert printable(text).isprintable()
    for piece, _ in styled(text):
        assert piece
        assert piece.isprintable()


@given(st.binary(max_size=200))
def test_no_bytes_make_a_control_character(data: bytes) -> None:
    for codec in ("utf-8", "latin-1"):
        text = "".join(piece for piece, _ in styled(data.decode(codec, "replace")))
        assert text.isprintable()
        text.encode()


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"])))
def test_plain_text_is_left_alone(text: str) -> None:
    assert printable(text) == text
    assert styled(text) == ([(text, PLAIN)] if text else [])


@pytest.mark.parametrize(
    "text", ["Größe 3 µs", "損失 0.31", "progress ████▏ 41%", "e\u0301", "naïve ✓ → ∞", "กำลังฝึก"]
)
def test_other_scripts_are_left_alone(text: str) -> None:
    assert printable(text) == text
    assert styled(text) == [(text, PLAIN)]


@pytest.mark.parametrize(
    ("attack", "shown"),
    [
        ("a\x1b]0;owned\x07b", "ab"),
        ("a\x1b]0;owned\x1b\\b", "ab"),
        ("a\x9d0;owned\x9cb", "ab"),
        ("\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\", "click"),
        ("\x1b]52;c;cm0gLXJmIH4=\x07x", "x"),
        ("a\x1b[2J\x1b[Hb", "ab"),
        ("a\x9b2Jb", "ab"),
        ("a\x1b[?1049hb", "ab"),
        ("a\x1b[>4;2mb", "ab"),
        ("a\x1b[1 qb", "ab"),
        ("a\x1bcb", "ab"),
        ("a\x1b(0b", "ab"),
        ("a\x1bP1$r0m\x1b\\b", "ab"),
        ("a\x1b_private\x1b\\b", "ab"),
        ("a\x1b^private\x1b\\b", "ab"),
        ("a\x1b", "a"),
        ("a\0b\x7fc\x08d", "abcd"),
        ("user\u202etxt.exe", "usertxt.exe"),
        ("\u2066a\u2069", "a"),
        ("pay\u200bpal\ufeff", "paypal"),
        ("x\u3164y", "xy"),
        ("a\ud800b", "a\ufffdb"),
        ("\ue0a0", "\ufffd"),
        ("a\xa0b", "a b"),
        ("a\u3000b", "a  b"),
        ("tag\U000e0041\U000e007f", "tag"),
    ],
)
def test_attacks(attack: str, shown: str) -> None:
    assert printable(attack) == shown
    assert "".join(piece for piece, _ in styled(attack)) == shown


def test_a_string_without_end_hides_nothing() -> None:
    assert printable("before \x1b]0;loss is nan") == "before 0;loss is nan"


def test_line_ends_and_tabs_become_spaces_in_labels() -> None:
    assert printable("one\ntwo\r\nthree\tfour") == "one two  three four"


def test_tabs_are_expanded_to_stops() -> None:
    assert styled("a\tb") == [("a       b", PLAIN)]
    assert styled("\t|") == [("        |", PLAIN)]
    assert styled("漢\tb") == [("漢      b", PLAIN)]
    assert styled("12345678\tb\x1b[1m\tc") == [("12345678        b", PLAIN), ("       c", Sgr(bold=True))]


def test_marks_do_not_pile_up() -> None:
    assert printable("a" + "\u0301" * 50) == "a" + "\u0301" * MAX_COMBINING


@pytest.mark.parametrize(
    ("params", "style"),
    [
        ("", Sgr()),
        ("1;31", Sgr(bold=True, foreground=1)),
        ("97;104", Sgr(foreground=15, background=12)),
        ("38;5;208", Sgr(foreground=208)),
        ("38;2;1;2;3;4", Sgr(foreground=(1, 2, 3), underline=True)),
        ("48:2::1:2:3", Sgr(background=(1, 2, 3))),
        ("38:5:9", Sgr(foreground=9)),
        ("58;5;1;3", Sgr(italic=True)),
        ("4:0", Sgr()),
        ("4:3", Sgr(underline=True)),
        ("7;9;2", Sgr(reverse=True, strike=True, dim=True)),
        ("8;5", Sgr()),
        ("38;5;999", Sgr()),
        ("38;2;1;2", Sgr()),
        ("38", Sgr()),
        ("99999999999", Sgr()),
        ("1;" * 500, Sgr()),
        ("?1", Sgr()),
    ],
)
def test_colours(params: str, style: Sgr) -> None:
    assert styled(f"\x1b[{params}mx") == [("x", style)]


def test_a_style_ends_where_it_is_ended() -> None:
    red = Sgr(foreground=1)
    assert styled("a\x1b[31mb\x1b[39mc") == [("a", PLAIN), ("b", red), ("c", PLAIN)]
    assert styled("\x1b[1;31ma\x1b[22mb\x1b[0mc") == [("a", Sgr(1, bold=True)), ("b", red), ("c", PLAIN)]
    assert styled("\x1b[31ma\x1b[K\x1b[31mb") == [("ab", red)]


def test_the_number_of_pieces_is_bounded() -> None:
    line = "".join(f"\x1b[38;5;{i % 256}mx" for i in range(20_000))
    pieces = styled(line)
    assert len(pieces) <= 513
    assert sum(len(text) for text, _ in pieces) == 20_000


@pytest.mark.parametrize(
    "unit",
    ["\x1b]", "\x9d", "\x1b[", "\x1b[0", "\x9b", "\x1bP\x9d", "\x1b ", "\x1b[31m", "\u0301", "\t", "\x1b[1 "],
)
def test_no_input_takes_quadratic_time(unit: str) -> None:
    def cost(count: int) -> float:
        line = unit * count
        best = 10.0
        for _ in range(3):
            started = time.process_time()
            styled(line)
            printable(line)
            best = min(best, time.process_time() - started)
        return best

    small, large = cost(4_000), cost(64_000)
    assert large < max(small, 0.001) * 16 * 4
