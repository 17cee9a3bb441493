"""Makes Python source smaller for the archive: no comments, docstrings, types; of a module only what is used.

What is left stands in the lines in which it stood, so a traceback from a host leads to the right place in the
sources, and does the same.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import AbstractSet, Iterator, List, Set, Tuple

_BEFORE_STATEMENT = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
_NOTHING = (tokenize.COMMENT, tokenize.NL)

Place = Tuple[int, int]
"""A line, from 1 on, and a column."""

EMPTY = '""'
"""What a docstring becomes: a function may have no other statement."""


def condense(source: bytes) -> bytes:
    """Return UTF-8 `source` without comments, docstrings and the types of functions' arguments and variables.

    Comments before its first statement stay, and strings that stand alone as a statement count as docstrings
    wherever they are. The types of classes' fields stay: they are read at run time. Raises SyntaxError and
    tokenize.TokenError for what is no Python.
    """
    lines = source.decode("utf-8").split("\n")
    for span in sorted(_types(ast.parse(source)), reverse=True):
        _remove(lines, *span)
    untyped = "\n".join(lines).encode("utf-8")
    tokens = list(tokenize.tokenize(io.BytesIO(untyped).readline))
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


def _types(tree: ast.AST) -> Iterator[Tuple[Place, Place]]:
    """From where to where the types stand that nobody reads, with the sign in front of them."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        arguments = node.args
        for each in (
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            arguments.vararg,
            arguments.kwarg,
        ):
            if each is not None and each.annotation is not None:
                yield (each.lineno, each.col_offset + len(each.arg)), _end(each.annotation)
        if node.returns is not None:
            yield (node.returns.lineno, node.returns.col_offset - len("-> ")), _end(node.returns)
        for statement in _own_statements(node):
            if isinstance(statement, ast.AnnAssign) and statement.value is not None:
                yield _end(statement.target), _end(statement.annotation)


def _own_statements(function: ast.AST) -> Iterator[ast.AST]:
    """What is in a function and not in a class in it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child
            yield from _own_statements(child)


def _end(node: ast.expr) -> Place:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _remove(lines: List[str], begin: Place, end: Place) -> None:
    """Take out what stands there; what follows moves up, and lines that it went over stay empty."""
    (first, left), (last, right) = begin, end
    rest = lines[last - 1][right:]
    lines[first - 1 : last] = [lines[first - 1][:left].rstrip() + rest, *[""] * (last - first)]


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
