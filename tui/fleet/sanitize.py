"""The only way text of a host reaches the screen: what is printable, and colours by SGR. Nothing else.

A host may be anybody's machine and a log may hold anything. Whatever goes in, no control character, escape
sequence, bidirectional override or invisible character comes out: every string returned here satisfies
`str.isprintable()`. Colours are returned as data (`Sgr`), never as escape sequences.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace

Color = int | tuple[int, int, int]
"""0-15 are the terminal's own colours, 16-255 the fixed palette, a triple is red, green, blue."""

TAB_SIZE = 8

MAX_STYLES = 512
"""Changes of style that are followed within one line; what comes after keeps the last one."""

MAX_COMBINING = 4
"""Marks that may be stacked on one character; more only serve to draw over the neighbouring lines."""

REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class Sgr:
    """How a piece of text asked to be drawn. Blinking and concealed text are not honoured."""

    foreground: Color | None = None
    background: Color | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    reverse: bool = False
    strike: bool = False


PLAIN = Sgr()

# The body of a string sequence ends at its terminator; one that never ends is not followed, so that a stray
# introducer in binary output hides nothing. Excluding the introducers from the body keeps matching linear.
_STRING_BODY = r"[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)(?P<params>[0-?]*)(?P<intermediates>[ -/]*)(?P<final>[@-~])"
    rf"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f]){_STRING_BODY}"
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b"
)

# Invisible although `str.isprintable()`: joiners, fillers, variation selectors, skin tones. They change what
# a string compares equal to, or the width that a terminal gives it.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0"
    "\U0001d173-\U0001d17a\U0001f3fb-\U0001f3ff\U000e0000-\U000e0fff]"
)

# A cheap test for "may stack marks": only then is each character looked up.
_MAYBE_STACKED = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u1cff\u1dc0-\u1dff\u20d0-\u20ff\u2cef-\u2cf1\u2de0-\u2dff\u302a-\u302d"
    f"\u3099\u309a\ua66f-\uabff\ufb1e\ufe20-\ufe2f\U00010000-\U0001efff]{{{MAX_COMBINING + 1}}}"
)

_SPACES = {ord(space): " " for space in "\t\n\v\f\r\x85\u2028\u2029"}


def printable(text: str) -> str:
    """Return `text` on one line with all that is not plain text removed; line ends and tabs become spaces."""
    if text.isprintable() and text.isascii():
        return text
    if not text.isprintable():
        text = _SEQUENCE.sub("", text)
    return _clean(text.translate(_SPACES))


def styled(line: str) -> list[tuple[str, Sgr]]:
    """Return one line of output as pieces of printable text with their styles; tabs are expanded.

    A style lasts to the end of the line, not beyond: each line can be drawn without the ones before it.
    """
    if line.isprintable():
        text = line if line.isascii() else _clean(line)
        return [(text, PLAIN)] if text else []
    pieces: list[tuple[str, Sgr]] = []
    style = PLAIN
    changes = 0
    column = 0
    position = 0
    for match in _SEQUENCE.finditer(line):
        column = _append(pieces, line[position : match.start()], style, column)
        position = match.end()
        if match["final"] == "m" and not match["intermediates"] and changes < MAX_STYLES:
            style = _apply(style, match["params"])
            changes += 1
    _append(pieces, line[position:], style, column)
    return pieces


def _append(pieces: list[tuple[str, Sgr]], text: str, style: Sgr, column: int) -> int:
    """Add `text` in `style`, joined to a last piece of the same style; return the column it ends in."""
    if not text:
        return column
    if "\t" in text:
        *parts, last = map(_clean, text.split("\t"))
        expanded = ""
        for part in parts:
            column += _width(part)
            stop = TAB_SIZE - column % TAB_SIZE
            column += stop
            expanded += part + " " * stop
        column += _width(last)
        text = expanded + last
    else:
        text = _clean(text)
        column += _width(text)
    if not text:
        return column
    if pieces and pieces[-1][1] == style:
        pieces[-1] = (pieces[-1][0] + text, style)
    else:
        pieces.append((text, style))
    return column


def _width(text: str) -> int:
    """Columns of a terminal, near enough for tab stops."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _clean(text: str) -> str:
    """Remove or replace every character that is not visible text. The result is printable."""
    if not text.isprintable():
        text = "".join([char if char.isprintable() else _substitute(char) for char in text])
    if text.isascii():
        return text
    text = _INVISIBLE.sub("", text)
    if _MAYBE_STACKED.search(text):
        text = _unstack(text)
    return text


def _substitute(char: str) -> str:
    """What is shown instead of a character that is not printable."""
    category = unicodedata.category(char)
    if category == "Zs":
        return "  " if unicodedata.east_asian_width(char) == "F" else " "
    if category in ("Cc", "Cf", "Zl", "Zp"):
        return ""
    return REPLACEMENT


def _unstack(text: str) -> str:
    """Drop combining marks beyond `MAX_COMBINING` in a row."""
    kept: list[str] = []
    run = 0
    for char in text:
        run = run + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        if run <= MAX_COMBINING:
            kept.append(char)
    return "".join(kept)


_FLAGS: dict[int, dict[str, bool]] = {
    1: {"bold": True},
    2: {"dim": True},
    3: {"italic": True},
    4: {"underline": True},
    7: {"reverse": True},
    9: {"strike": True},
    21: {"underline": True},
    22: {"bold": False, "dim": False},
    23: {"italic": False},
    24: {"underline": False},
    27: {"reverse": False},
    29: {"strike": False},
}

_PARAMS = re.compile(r"[0-9;:]*\Z")


def _apply(style: Sgr, params: str) -> Sgr:
    """Return `style` after `CSI params m`. What is private, malformed or unknown changes nothing."""
    if not _PARAMS.match(params) or len(params) > 128:
        return style
    codes = params.split(";")
    index = 0
    while index < len(codes):
        code, *sub = codes[index].split(":")
        index += 1
        number = int(code[:4]) if code else 0
        if number == 0:
            style = PLAIN
        elif number == 4 and sub:
            style = replace(style, underline=sub[0] != "0")
        elif number in (38, 48, 58):
            if sub:
                color = _color(_numbers(sub))
            else:
                arguments = _numbers(codes[index : index + 4])
                color = _color(arguments)
                index += 2 if arguments[:1] == [5] else 4 if arguments[:1] == [2] else 0
            if number != 58 and color is not None:
                style = _colored(style, color, background=number == 48)
        elif number in _FLAGS:
            style = replace(style, **_FLAGS[number])
        elif 30 <= number <= 37 or 90 <= number <= 97:
            style = _colored(style, number - 30 if number < 90 else number - 82, background=False)
        elif 40 <= number <= 47 or 100 <= number <= 107:
            style = _colored(style, number - 40 if number < 100 else number - 92, background=True)
        elif number == 39:
            style = replace(style, foreground=None)
        elif number == 49:
            style = replace(style, background=None)
    return style


def _colored(style: Sgr, color: Color, *, background: bool) -> Sgr:
    return replace(style, background=color) if background else replace(style, foreground=color)


def _numbers(fields: list[str]) -> list[int]:
    return [int(field.split(":")[0][:4] or 0) for field in fields]


def _color(arguments: list[int]) -> Color | None:
    """The colour of `5;n`, `2;r;g;b` or, with colons, `2::r:g:b`; None when it is none."""
    if len(arguments) >= 2 and arguments[0] == 5 and arguments[1] < 256:
        return arguments[1]
    if len(arguments) >= 4 and arguments[0] == 2:
        red, green, blue = arguments[-3:]
        if max(red, green, blue) < 256:
            return red, green, blue
    return None
