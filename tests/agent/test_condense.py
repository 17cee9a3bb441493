"""Sources without comments and docstrings: the same code, in the same lines, whoever builds it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import types
from pathlib import Path

import pynvml
import pytest

from agent import condense

AGENT = Path(condense.__file__).parent
SOURCES = [Path(pynvml.__file__), *sorted(AGENT.glob("*.py"))]

BUILDERS = sorted(
    str(path)
    for path in Path.home().glob(".pyenv/versions/3.*/bin/python")
    if int(path.parts[-3].split(".")[1]) >= 10
)


def code_of(source: bytes) -> tuple[object, ...]:
    """All that a module executes, with its lines; docstrings left out."""
    return _parts(compile(source, "module.py", "exec", dont_inherit=True, optimize=2))


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
    def f(self):  # how
        # alone
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
    def f(self):

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
