"""Takes comments and docstrings out of Python source for the archive: a third of its bytes, none of its code.

What is left stands in the lines and columns in which it stood, so a traceback from a host leads to the right
place in the sources, and compiles to the same code but for the docstrings.
"""

from __future__ import annotations

import io
import tokenize
from typing import List

_BEFORE_STATEMENT = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
_NOTHING = (tokenize.COMMENT, tokenize.NL)

EMPTY = '""'
"""What a docstring becomes: a function may have no other statement."""


def condense(source: bytes) -> bytes:
    """Return UTF-8 `source` without comments and docstrings; comments before its first statement stay.

    Strings that stand alone as a statement count as docstrings wherever they are. Raises SyntaxError and
    tokenize.TokenError for what is no Python.
    """
    lines = source.decode("utf-8").split("\n")
    tokens = list(tokenize.tokenize(io.BytesIO(source).readline))
    meaning = [token for token in tokens if token.type not in _NOTHING]
    begins = meaning[1].start if len(meaning) > 1 else (0, 0)
    cuts = [(token, "") for token in tokens if token.type == tokenize.COMMENT and token.start > begins]
    cuts += [
        (token, EMPTY)
        for before, token, after in zip(meaning, meaning[1:], meaning[2:])
        if token.type == tokenize.STRING
        and before.type in _BEFORE_STATEMENT
        and after.type == tokenize.NEWLINE
    ]
    for token, kept in cuts:
        _cut(lines, token, kept)
    return "\n".join(lines).encode("utf-8")


def _cut(lines: List[str], token: tokenize.TokenInfo, kept: str) -> None:
    """Leave `kept` of a token that is the last of its line, and empty lines where it went over several."""
    (first, column), (last, _) = token.start, token.end
    lines[first - 1] = (lines[first - 1][:column] + kept).rstrip()
    lines[first:last] = [""] * (last - first)
