"""Sources without comments and docstrings: the same code, in the same lines, whoever builds it."""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
import types
from pathlib import Path

import pynvml
import pytest

from agent import condense

AGENT = Path(condense.__file__).parent
SOURCES = [Path(pynvml.__file__), *sorted(AGENT.glob("**/*.py"))]

BUILDERS = sorted(
    str(path)
    for path in Path.home().glob(".pyenv/versions/3.*/bin/python")
    if int(path.parts[-3].split(".")[1]) >= 10
)


def code_of(source: bytes) -> tuple[object, ...]:
    """All that a module executes, with its lines; docstrings and the types of functions left out."""
    tree = Untyped().visit(ast.parse(source))
    return _parts(compile(tree, "module.py", "exec", dont_inherit=True, optimize=2))


class Untyped(ast.NodeTransformer):
    """Takes the types from arguments, results and local variables, as the compiler sees them."""

    inside = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns, before, self.inside = None, self.inside, True
        self.generic_visit(node)
        self.inside = before
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        before, self.inside = self.inside, False
        self.generic_visit(node)
        self.inside = before
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if not self.inside or node.value is None:
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def _parts(code: types.CodeType) -> tuple[object, ...]:
    constants = [_parts(item) if isinstance(item, types.CodeType) else item for item in code.co_consts]
    lines = list(code.co_lines()) if hasattr(code, "co_lines") else []
    return code.co_name, code.co_code, repr(constants), code.co_names, code.co_varnames, lines


@pytest.mark.parametrize("path", SOURCES, ids=[path.name for path in SOURCES])
def test_it_is_the_same_code_in_the_same_lines(path: Path) -> None:
    source = path.read_bytes()
    condensed = condense.condense(source)
    assert code_of(condensed) == code_of(source)
    assert condensed.count(b"\n") == source.count(b"\n")
    assert condense.condense(condensed) == condensed


BEFORE = b"""# licence
#

'''Module.'''
import os  # why


class A:
    '''Of
    A. # no'''
    x = '#'
    'x'
    y: int = 1
    def f(self, a: int, *b: "c", d: x[int] = 1,
          **e: int) -> x[
              int]:  # how
        # alone
        g: int = 2; h: int
        '''Only.'''

if A(  # here
    ): 'stays'
b = '''# stays
'''
'a' 'stays'
'last'  # word"""

AFTER = b"""# licence
#

""
import os


class A:
    ""

    x = '#'
    ""
    y: int = 1
    def f(self, a, *b, d = 1,
          **e):


        g = 2; h: int
        ""

if A(
    ): 'stays'
b = '''# stays
'''
'a' 'stays'
\"\""""


def test_what_goes_and_what_stays() -> None:
    assert condense.condense(BEFORE) == AFTER
    assert condense.condense(b"") == b""
    assert condense.condense(b"# only a comment\n") == b"# only a comment\n"


MODULE = b"""# licence
import os

A = 1
B = A
C = B  # why
D = lambda: os


@print
def f():
    return [C,
            'E']


class g: pass
E = F, G = 1, 2
f()
H = 1
"""


def test_of_a_module_stays_what_is_wanted_and_what_that_needs() -> None:
    kept = condense.only(MODULE, {"D"}).decode().split("\n")
    assert kept == MODULE.replace(b"class g: pass", b"").replace(b"H = 1", b"").decode().split("\n"), (
        "a call stays, and so f and all that it needs"
    )
    without_call = MODULE.replace(b"\nf()\n", b"\n\n")
    kept = condense.only(without_call, {"B"}).decode().split("\n")
    assert [line for line in kept if line] == ["# licence", "import os", "A = 1", "B = A", "E = F, G = 1, 2"]
    assert kept[4] == "B = A", "in its line"


@pytest.mark.skipif(not BUILDERS, reason="no other Python on this machine")
@pytest.mark.parametrize("builder", BUILDERS, ids=[path.split("/")[-3] for path in BUILDERS])
def test_every_python_of_a_controller_makes_the_same_bytes(builder: str) -> None:
    """The archive's name is its hash, so two controllers must agree on it."""
    code = (
        "import hashlib, sys; sys.path.insert(0, sys.argv[1]); from agent.condense import condense\n"
        "for path in sys.argv[2:]: print(hashlib.sha256(condense(open(path, 'rb').read())).hexdigest())"
    )
    done = subprocess.run(
        [builder, "-I", "-S", "-B", "-c", code, str(AGENT.parent), *map(str, SOURCES)],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    here = [hashlib.sha256(condense.condense(path.read_bytes())).hexdigest() for path in SOURCES]
    assert done.stdout.split() == here, sys.version
