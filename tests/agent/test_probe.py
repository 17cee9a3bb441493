"""Finding the Python that trains: real interpreters, with torch or without, and what is kept of it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from agent import paths, probe
from agent.errors import RunError


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host on which only what a test puts into its folder can be found."""
    monkeypatch.setattr(
        probe, "_places", lambda cwd: sorted(str(path) for path in tmp_path.glob("*/bin/python"))
    )
    return tmp_path


def venv(folder: Path, name: str, python: str = sys.executable, before: str = "") -> str:
    """A program that is `python` with whatever `before`, a piece of shell, sets."""
    path = folder / name / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\n{before}\nexec {python} -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def with_torch(folder: Path, name: str, body: str = "", python: str = sys.executable) -> str:
    library = folder / f"{name}-library"
    (library / "torch").mkdir(parents=True)
    (library / "torch" / "__init__.py").write_text(f"from . import version\n__version__ = '2.9.0'\n{body}\n")
    (library / "torch" / "version.py").write_text("cuda = '13.0'\n")
    return venv(folder, name, python, f"export PYTHONPATH={library}; echo asked >> {folder}/{name}.log")


def times_asked(folder: Path, name: str) -> int:
    log = folder / f"{name}.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_torch_is_really_imported_under_every_python(python: str, home: str, tmp_path: Path) -> None:
    path = with_torch(tmp_path, "env", "print('noise of torch')", python)
    found = probe.inspect(home, path)
    assert found.path == path
    assert found[2:] == ("2.9.0", "13.0", "")
    assert found.version.startswith("3.")


def test_auto_is_the_first_that_imports_torch(home: str, alone: Path) -> None:
    venv(alone, "a-without")
    with_torch(alone, "b-broken", "raise OSError('libcuda.so.1: cannot open shared object file')")
    wanted = with_torch(alone, "c-good")
    with_torch(alone, "d-later")
    assert probe.resolve(home, "auto", "").path == wanted
    assert times_asked(alone, "d-later") == 0


def test_without_torch_anywhere_all_that_was_tried_is_told(home: str, alone: Path) -> None:
    without = venv(alone, "a-without")
    broken = with_torch(alone, "b-broken", "raise OSError('libcuda.so.1: cannot open shared object file')")
    dead = venv(alone, "c-dead", before="echo bad interpreter >&2; exit 5")
    with pytest.raises(RunError) as refusal:
        probe.resolve(home, "auto", "")
    error = refusal.value
    assert error.code == "no-python"
    version = "{}.{}.{}".format(*sys.version_info)
    assert f"{without} (Python {version} without torch)" in error.message
    assert f"{broken} (OSError: libcuda.so.1: cannot open shared object file)" in error.message
    assert f"{dead} (ended with code 5: bad interpreter)" in error.message
    assert 'python = "/path/to/python"' in error.hint


def test_a_host_without_any_python_is_told_so(home: str, alone: Path) -> None:
    with pytest.raises(RunError, match="none was found"):
        probe.resolve(home, "auto", "")


def test_a_named_python_has_to_be_one_and_have_torch(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = with_torch(tmp_path, "good")
    assert probe.resolve(home, good, "/").torch == "2.9.0"
    assert probe.resolve(home, "good/bin/python", str(tmp_path)).path == good
    monkeypatch.setenv("PATH", str(Path(good).parent))
    assert probe.resolve(home, "python", "/").path == good
    for wrong in ("/nowhere/python", str(tmp_path), "no-such-python"):
        with pytest.raises(RunError, match="is not a program on this host"):
            probe.resolve(home, wrong, "/")
    with pytest.raises(RunError, match="has no torch"):
        probe.resolve(home, venv(tmp_path, "plain", before="PATH=/usr/bin:/bin"), "/")


def test_an_answer_is_kept_until_torch_changes(home: str, tmp_path: Path) -> None:
    path = with_torch(tmp_path, "env")
    assert probe.inspect(home, path) == probe.inspect(home, path)
    assert times_asked(tmp_path, "env") == 1
    assert Path(paths.interpreters_file(home)).stat().st_mode & 0o777 == 0o600
    (tmp_path / "env-library" / "torch" / "__init__.py").write_text(
        "from . import version\n__version__ = '3.0'\n"
    )
    (tmp_path / "env-library" / "torch" / "version.py").write_text("cuda = None  # another one\n")
    assert probe.inspect(home, path)[2:4] == ("3.0", None)
    assert times_asked(tmp_path, "env") == 2


def test_torch_that_is_installed_later_is_found(home: str, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    path = venv(tmp_path, "env", before=f"export PYTHONPATH={library}; echo asked >> {tmp_path}/env.log")
    assert probe.inspect(home, path).torch is None
    assert probe.inspect(home, path).torch is None
    assert times_asked(tmp_path, "env") == 1
    (library / "torch").mkdir()
    (library / "torch" / "__init__.py").write_text("from . import version\n__version__ = '2.9.0'\n")
    (library / "torch" / "version.py").write_text("")
    os.utime(library, (time.time() + 5, time.time() + 5))
    assert probe.inspect(home, path).torch == "2.9.0"


def test_a_failure_is_not_kept(home: str, tmp_path: Path) -> None:
    path = with_torch(tmp_path, "env", "raise OSError('disk is cold')")
    assert probe.inspect(home, path).error == "OSError: disk is cold"
    assert probe.inspect(home, path).torch is None
    assert times_asked(tmp_path, "env") == 2


def test_an_import_that_hangs_is_given_up(home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "IMPORT_SECONDS", 0.5)
    path = with_torch(tmp_path, "env", "import time; time.sleep(600)")
    assert "takes more than" in probe.inspect(home, path).error


def test_damaged_memory_is_no_memory(home: str, tmp_path: Path) -> None:
    path = with_torch(tmp_path, "env")
    for text in ("{", f'{{"{path}": 5}}', f'{{"{path}": {{"stamps": [], "watched": 5, "answer": []}}}}'):
        Path(paths.interpreters_file(home)).write_text(text)
        assert probe.inspect(home, path).torch == "2.9.0"


def test_candidates_are_real_programs_and_none_comes_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = venv(tmp_path, ".venv")
    (tmp_path / "other").symlink_to(tmp_path / ".venv")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "other"))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "gone"))
    found = probe.candidates(str(tmp_path))
    assert found[0] == own
    folders = [Path(path).parent for path in found]
    assert len({folder.resolve() for folder in folders}) == len(found)
    assert all(os.access(path, os.X_OK) for path in found)
    assert not any("gone" in path for path in found)
    assert any(folder.samefile(Path(sys.executable).parent) for folder in folders)


@pytest.mark.slow
def test_every_python_of_this_host_can_be_asked(home: str) -> None:
    found = probe.interpreters(home)
    assert found
    assert all(interpreter.version or interpreter.error for interpreter in found)


@pytest.mark.torch
def test_the_real_torch_is_found(home: str) -> None:
    pytest.importorskip("torch")
    found = probe.inspect(home, sys.executable)
    assert found.torch is not None
    assert found.error == ""
    again = time.monotonic()
    assert probe.inspect(home, sys.executable) == found
    assert time.monotonic() - again < 0.1
