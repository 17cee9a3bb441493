"""Finding the Python that trains: real interpreters, with torch or without, and what is kept of it."""

from __future__ import annotations

import json
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


def with_packages(folder: Path, name: str, *packages: str, torch: bool = True) -> str:
    """Packages that must not be imported when they are looked for; the distribution has a longer name."""
    path = (
        with_torch(folder, name)
        if torch
        else venv(folder, name, before="export PYTHONPATH=" + library(folder, name))
    )
    for package in packages:
        place = Path(library(folder, name)) / package
        place.mkdir(parents=True)
        (place / "__init__.py").write_text("raise SystemExit('imported')\n")
        info = (
            place.parent / f"{package}-cpu-7.1.dist-info"
            if package == "tensorflow"
            else place.parent / f"{package}-7.1.dist-info"
        )
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {info.name.rpartition('-')[0]}\nVersion: 7.1\n"
        )
    return path


def library(folder: Path, name: str) -> str:
    return str(folder / f"{name}-library")


def times_asked(folder: Path, name: str) -> int:
    log = folder / f"{name}.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_torch_is_really_imported_under_every_python(python: str, home: str, tmp_path: Path) -> None:
    path = with_torch(tmp_path, "env", "print('noise of torch')", python)
    found = probe.inspect(home, path)
    assert found.path == path
    assert found[2:] == ("2.9.0", "13.0", "", {"torch": "2.9.0"})
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


def test_packages_are_found_and_not_imported(python: str, home: str, tmp_path: Path) -> None:
    found = probe.inspect(home, with_packages(tmp_path, "env", "deepspeed", "tensorflow", "horovod"))
    versions = {"deepspeed": "7.1", "tensorflow": "7.1", "horovod": "7.1", "torch": "2.9.0"}
    assert (found.error, found.packages) == ("", versions)
    assert found.lacks(("torch", "horovod", "safetensors")) == ["safetensors"]


def test_auto_is_the_first_that_has_what_is_needed(home: str, alone: Path) -> None:
    plain = with_torch(alone, "a-torch")
    other = with_packages(alone, "b-tensorflow", "tensorflow", torch=False)
    wanted = with_packages(alone, "c-deepspeed", "deepspeed")
    assert probe.resolve(home, "auto", "").path == plain
    assert probe.resolve(home, "auto", "", ("torch", "deepspeed")).path == wanted
    assert probe.resolve(home, "auto", "", ("tensorflow",)).path == other
    assert probe.resolve(home, "auto", "", ("torch",), ("torch", "deepspeed")).path == wanted, "script mode"
    assert probe.resolve(home, "auto", "", ("torch",), ("torch", "horovod")).path == plain
    with pytest.raises(RunError) as refusal:
        probe.resolve(home, "auto", "", ("torch", "horovod"), what_for="strategy horovod")
    error = refusal.value
    assert error.code == "no-package"
    assert error.message.startswith(
        "no Python on this host has torch and horovod, which strategy horovod needs"
    )
    assert f"{other} (Python " in error.message
    assert "without torch and horovod)" in error.message
    assert error.hint.startswith("encamp env build horovod --on HOST, ")


def test_a_named_python_has_to_have_what_is_needed(home: str, tmp_path: Path) -> None:
    path = with_packages(tmp_path, "env", "deepspeed")
    assert probe.resolve(home, path, "", ("torch", "deepspeed")).path == path
    with pytest.raises(RunError, match=f"{path} has no horovod, which strategy horovod needs") as refusal:
        probe.resolve(home, path, "", ("torch", "horovod"), what_for="strategy horovod")
    assert refusal.value.code == "no-package"
    assert f"encamp env build horovod --on HOST --python {path}" in refusal.value.hint
    only = with_packages(tmp_path, "tf", "tensorflow", torch=False)
    assert probe.resolve(home, only, "", ("tensorflow",)).torch is None
    with pytest.raises(RunError, match="has no torch and horovod, which strategy horovod needs"):
        probe.resolve(home, only, "", ("torch", "horovod"), what_for="strategy horovod")


def test_environments_of_recipes_come_last_and_only_when_complete(home: str, alone: Path) -> None:
    plain = with_torch(alone, "a-torch")
    built = Path(with_packages(alone, "b-built", "horovod")).parents[1]
    folder = Path(paths.env_dir(home, "0" * 32))
    folder.parent.mkdir(parents=True)
    built.rename(folder)
    assert probe.candidates("", home) == [plain]
    for made in ({"packages": ["x"]}, {"recipe": "horovod", "built": 5.0}):
        (folder / probe.MARKER).write_text(json.dumps(made))
    assert probe.candidates("", home) == [plain, str(folder / "bin" / "python")]
    assert probe.resolve(home, "auto", "", ("torch", "horovod")).path == str(folder / "bin" / "python")
    assert probe.candidates("") == [plain]


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
