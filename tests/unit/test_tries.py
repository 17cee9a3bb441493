"""A test that missed a deadline gets a second try; a wrong answer and a broken tree do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent


def tried(folder: Path, text: str, *arguments: str, tries: str = "2") -> tuple[int, str, list[str]]:
    """The exit code and output of `tries.py` on tests of that text, and what they noted by `note(WORD)`."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(
        "from pathlib import Path\n"
        "def note(word):\n"
        "    with open('notes', 'a') as file: file.write(word + ' ')\n"
        "    return Path('notes').read_text().split().count(word)\n" + text
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("ENCAMP_TESTS", "PYTEST"))
    }
    done = subprocess.run(
        [sys.executable, str(TESTS / "tries.py"), "-p", "second_try", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(TESTS), "ENCAMP_TESTS_TRIES": tries},
        capture_output=True,
        text=True,
        check=False,
    )
    notes = folder / "notes"
    return done.returncode, done.stdout + done.stderr, notes.read_text().split() if notes.exists() else []


LATE = """
def test_good(): note('good')
def test_late(): assert note('late') == 2
"""


@pytest.mark.parametrize("parallel", [(), ("-n", "2")])
def test_only_what_did_not_pass_runs_again(tmp_path: Path, parallel: tuple[str, ...]) -> None:
    code, output, notes = tried(tmp_path, LATE, *parallel)
    assert code == 0, output
    assert sorted(notes) == ["good", "late", "late"]
    assert "1 failed: a second try" in output
    assert "test_it.py::test_late" in output


def test_without_the_variable_there_is_one_try(tmp_path: Path) -> None:
    code, _, notes = tried(tmp_path, LATE, tries="")
    assert (code, notes) == (1, ["good", "late"])


def test_what_fails_twice_has_failed(tmp_path: Path) -> None:
    code, output, notes = tried(tmp_path, "def test_bad(): assert note('bad') == 9")
    assert (code, notes) == (1, ["bad", "bad"]), output


@pytest.mark.parametrize(
    "text",
    [
        "def test_name():\n    note('once')\n    assert False, 'WRONG: rank 2'",
        "import pytest\n@pytest.mark.parametrize('n', range(11))\ndef test_many(n): assert not note('once')",
        "def test_stop():\n    note('once')\n    raise KeyboardInterrupt",
    ],
)
def test_no_second_try_hides_a_wrong_answer_or_a_broken_tree(tmp_path: Path, text: str) -> None:
    code, _, notes = tried(tmp_path, text)
    assert code in (1, 2)
    assert len(notes) in (1, 11)


def test_what_never_ran_for_an_error_of_pytest_runs_in_the_second_try(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\n"
        "def pytest_runtest_logfinish(nodeid):\n"
        "    if 'good' in nodeid and not Path('broke').exists():\n"
        "        Path('broke').touch()\n"
        "        raise RuntimeError('of pytest itself')\n"
    )
    code, output, notes = tried(tmp_path, "def test_good(): note('good')\ndef test_next(): note('next')")
    assert "INTERNALERROR" in output
    assert (code, notes) == (0, ["good", "next"]), output


def test_half_a_surrogate_pair_in_a_report_ends_no_run(tmp_path: Path) -> None:
    text = "def test_odd(): assert 'a\\udcff' == 'b'\ndef test_good(): note('good')"
    code, output, notes = tried(tmp_path, text, "-n", "1", tries="")
    assert (code, notes) == (1, ["good"])
    assert "1 failed, 1 passed" in output
    assert r"a\udcff" in output
