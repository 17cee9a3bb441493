"""Makes Python source smaller for the archive: no comments, no docstrings, of a module only what is used.

What is left stands in the lines and columns in which it stood, so a traceback from a host leads to the right
place in the sources, and compiles to the same code but for the docstrings.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import AbstractSet, List, Set, Tuple

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


def only(source: bytes, wanted: AbstractSet[str]) -> bytes:
    """Return a module without the functions, classes and constants that nothing needs that is `wanted`.

    What a definition that stays mentions stays too, and so do statements that define nothing. Raises
    SyntaxError.
    """
    statements = ast.parse(source).body
    needed = set(wanted)
    kept: Set[int] = set()
    grown = True
    while grown:
        grown = False
        for number, statement in enumerate(statements):
            names = _defined(statement)
            if number not in kept and (not names or names & needed):
                kept.add(number)
                needed |= _mentioned(statement)
                grown = True
    lines = source.decode("utf-8").split("\n")
    for number, statement in enumerate(statements):
        if number not in kept:
            first, last = _lines(statement)
            lines[first - 1 : last] = [""] * (last - first + 1)
    return "\n".join(lines).encode("utf-8")


def _defined(statement: ast.stmt) -> Set[str]:
    """The names that a statement of a module defines, if that is all that it does."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return set(names) if len(names) == len(targets) else set()


def _mentioned(statement: ast.stmt) -> Set[str]:
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    # Names that are put together or looked up at run time are strings first.
    texts = [node.value for node in ast.walk(statement) if isinstance(node, ast.Constant)]
    return names | {word for text in texts if isinstance(text, str) for word in re.findall(r"\w+", text)}


def _lines(statement: ast.stmt) -> Tuple[int, int]:
    """The first and last line, decorators included."""
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(node.lineno for node in decorators)]), statement.end_lineno or 0
