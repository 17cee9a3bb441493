"""What a host may show on the user's terminal: text and colours, however it comes cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.cli.terminal import Harmless

ALLOWED = re.compile(r"\x1b\[[0-9;:]*m|[\n\r\t]")

nasty = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.text(max_size=20).map(str.encode),
        st.sampled_from(
            [b"\x1b[31m", b"\x1b[0m", b"\x1b[2J", b"\x1b]0;t\x07", b"\x1b", b"\x9b", "\x9b5n".encode(),
             b"\x1b[", b"\x1bP", b"\x07", b"\r\n", b"\t", "\u202e".encode(), "é".encode(), b"\x1b[?1049h"]
        ),
    ),
    max_size=12,
).map(b"".join)  # fmt: skip


def shown(*pieces: bytes) -> str:
    harmless = Harmless()
    return (b"".join(map(harmless.feed, pieces)) + harmless.feed(b"", final=True)).decode()


@given(nasty)
def test_nothing_but_text_line_ends_and_colours_passes(data: bytes) -> None:
    assert ALLOWED.sub("", shown(data)).isprintable()


@given(nasty, st.lists(st.integers(0, 200), max_size=4))
def test_colours_and_plain_text_do_not_depend_on_where_the_bytes_are_cut(
    data: bytes, cuts: list[int]
) -> None:
    # Of a sequence that was cut, and only of such, the harmless rest may be shown as text.
    places = sorted(cut % (len(data) + 1) for cut in cuts)
    pieces = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
    assert ALLOWED.sub("", shown(*pieces)).isprintable()
    if b"\x1b" not in data and b"\x9b" not in data and b"\x90" not in data and b"\xc2" not in data:
        assert shown(*pieces) == shown(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"plain\n", "plain\n"),
        (b"\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        (b"10%\r20%\n", "10%\r20%\n"),
        (b"\x1b]0;title\x07after", "after"),
        (b"\x1b[2J\x1b[Hhome", "home"),
        ("naïve ☃".encode(), "naïve ☃"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_what_is_kept_and_what_goes(data: bytes, expected: str) -> None:
    assert shown(data) == expected + "\x1b[0m"
    assert shown(*[bytes([byte]) for byte in data]) == expected + "\x1b[0m"
