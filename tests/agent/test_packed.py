"""Modules of the archive that are one text: Python finds, shows and forgets them as if each were a file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from agent_client import agent_bundle

from agent import packed


@pytest.fixture
def pyz(tmp_path: Path) -> Path:
    path = tmp_path / "agent.pyz"
    path.write_bytes(agent_bundle().data)
    return path


def ask(python: str, pyz: Path, code: str) -> str:
    """What `code` prints where the modules of the archive can be imported."""
    start = f"import sys; sys.path.insert(0, {str(pyz)!r}); import agent\n"
    done = subprocess.run(
        [python, "-I", "-S", "-c", start + code], capture_output=True, check=False, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_tracebacks_lead_to_the_line_in_the_sources(python: str, pyz: Path) -> None:
    code = (
        "import traceback, agent.values, agent.diagnosis.evidence as e\n"
        "print(e.__file__, agent.diagnosis.__path__)\n"
        "try: agent.typed.from_json(e.Evidence, {'hosts': 3})\n"
        "except Exception as error: last = traceback.extract_tb(error.__traceback__)[-1]\n"
        "print(last.filename, last.lineno, last.line, sep='|')\n"
    )
    where, last = ask(python, pyz, "import agent.typed\n" + code).splitlines()
    assert where == f"{pyz}/agent/diagnosis/evidence.py ['{pyz}/agent/diagnosis']"
    file, number, line = last.split("|")
    assert file == f"{pyz}/agent/typed.py"
    source = Path(packed.__file__).with_name("typed.py").read_text().splitlines()
    assert line and source[int(number) - 1].strip() == line


def test_the_text_is_given_back_after_each_import(python: str, pyz: Path) -> None:
    code = (
        "finder = sys.meta_path[-1]\n"
        "import agent.typed\n"
        "print(finder._text, finder.is_package('agent.diagnosis'), finder.is_package('agent.typed'))\n"
        "for name in ('agent.nothing', 'agent.bundle', 'other.typed', 'agent'):\n"
        "    print(finder.find_spec(name), finder._text)\n"
        "try: finder.get_source('agent.nothing')\n"
        "except ImportError as error: print(error)\n"
    )
    assert ask(python, pyz, code).splitlines() == [
        "None True False",
        *4 * ["None None"],
        "no module agent.nothing here",
    ]


def test_the_relay_and_the_nvml_child_need_none_of_them(python: str, pyz: Path) -> None:
    code = (
        "import agent.connect, agent.nvml; finder = sys.meta_path[-1]\n"
        "print([name for name, module in sys.modules.items() if getattr(module, '__loader__', 0) is finder])"
    )
    assert ask(python, pyz, code) == "[]\n"
