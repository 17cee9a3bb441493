"""agent.pyz: the same bytes from the same sources, small, and at home under every Python of a host."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pynvml
import pytest
from agent_client import agent_bundle, packed_sources

from agent import bundle, condense, version

LIMIT = 150 * 1024

TOO_OLD = sorted(
    str(path)
    for path in Path.home().glob(".pyenv/versions/*/bin/python")
    if path.parts[-3].startswith(("2.", "3.6.", "3.7."))
)


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / f"{agent_bundle().sha256}.pyz"
    path.write_bytes(agent_bundle().data)
    return path


def test_the_size_stays_under_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    size = len(agent_bundle().data)
    with capsys.disabled():
        print(f" agent.pyz: {size} bytes, {100 * size / LIMIT:.0f} % of the limit ", end="")
    assert size <= LIMIT


def test_two_builds_are_the_same_bytes() -> None:
    first, second = bundle.build(), bundle.build()
    assert first == second
    assert first.sha256 == hashlib.sha256(first.data).hexdigest()


def test_what_is_in_it_and_what_is_not() -> None:
    with zipfile.ZipFile(io.BytesIO(agent_bundle().data)) as archive:
        entries = archive.infolist()
        assert not agent_bundle().data.startswith(b"#!")
        package = Path(bundle.__file__).parent
        rank = package.joinpath("rank.py").read_bytes()
        assert archive.read("agent/rank.py") == condense.condense(rank)
        assert packed_sources(archive)["daemon.py"] == condense.condense(
            package.joinpath("daemon.py").read_bytes()
        )
        assert archive.read("pynvml.py").startswith(b"#####\n# Copyright (c) 2011-")
    names = [entry.filename for entry in entries]
    assert names == sorted(names)
    assert {"__main__.py", "pynvml.py", "agent/__init__.py", "agent/modules.txt"} <= set(names)
    assert not [name for name in names if "test" in name or "bundle" in name or "condense" in name]
    assert {f"agent/{name}.py" for name in bundle.ALONE} < set(names)
    assert {entry.date_time for entry in entries} == {bundle.EPOCH}


def test_nvidia_s_module_has_all_that_the_agent_uses(pyz: Path, python: str) -> None:
    """And it is the same code: the constants, functions and error classes that its own code looks up too."""
    source = b"".join(path.read_bytes() for path in Path(bundle.__file__).parent.glob("**/*.py"))
    used = set(re.findall(r"\bnvml[A-Z_]\w+|\bNVML\w+", source.decode())) & set(dir(pynvml))
    assert {"nvmlInit", "NVMLError", "nvmlDeviceGetCount"} <= used
    ask = (
        "import sys; sys.path.insert(0, sys.argv[1]); import pynvml\n"
        "assert pynvml.__file__.startswith(sys.argv[1])\n"
        "missing = [name for name in sys.argv[2:] if not hasattr(pynvml, name)]\n"
        "print(missing, pynvml.NVMLError(15).__class__.__name__, pynvml.nvmlInit.__code__.co_firstlineno)"
    )
    done = subprocess.run(
        [python, "-I", "-S", "-c", ask, str(pyz), *sorted(used)], capture_output=True, check=False, text=True
    )
    line = pynvml.nvmlInit.__code__.co_firstlineno
    assert (done.stdout, done.stderr) == (f"[] NVMLError_GpuIsLost {line}\n", "")


def test_an_nvidia_module_that_lacks_a_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tmp_path / "pynvml.py"
    source = Path(pynvml.__file__).read_text()
    older.write_text(source.replace("def nvmlDeviceGetUUID(", "def nvmlDeviceGetOtherUUID("))
    monkeypatch.setattr(bundle, "_find_pynvml", lambda: str(older))
    with pytest.raises(bundle.BundleError, match=r"has no nvmlDeviceGetUUID: pip install --upgrade"):
        bundle.build()


def test_the_cache_is_used_until_a_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    built = bundle.build(str(cache))
    assert [path.name.split("-")[1] for path in cache.iterdir()] == [f"{built.sha256}.pyz"]
    with monkeypatch.context() as patch:
        patch.setattr(zipfile, "ZipFile", None)
        assert bundle.build(str(cache)) == built
    kept = next(cache.iterdir())
    kept.write_bytes(b"broken")
    assert bundle.build(str(cache)) == built
    assert kept.read_bytes() == built.data

    changed = tmp_path / "pynvml.py"
    changed.write_bytes(b"# Changed.\n" + Path(pynvml.__file__).read_bytes())
    monkeypatch.setattr(bundle, "_find_pynvml", lambda: str(changed))
    other = bundle.build(str(cache))
    assert other.sha256 != built.sha256
    assert [path.read_bytes() for path in cache.iterdir()] == [other.data], "only the newest is kept"


def test_a_pynvml_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text("nvmlInit = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)  # another test may have loaded the real one
    with pytest.raises(bundle.BundleError, match="is not NVIDIA's"):
        bundle.build()


def test_it_runs_under_every_python(pyz: Path, python: str) -> None:
    for flags in (("-I", "-S"), ()):
        done = subprocess.run(
            [python, *flags, str(pyz), "version"], capture_output=True, check=False, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{version.VERSION} {agent_bundle().sha256}\n"
        assert done.stderr == ""


def test_every_module_imports_under_every_python(pyz: Path, python: str) -> None:
    with zipfile.ZipFile(pyz) as archive:
        names = [name[len("agent/") :] for name in archive.namelist() if name.startswith("agent/")]
        names = [name for name in [*names, *packed_sources(archive)] if name.endswith(".py")]
    modules = [f"agent.{name[:-3]}".replace("/", ".") for name in names]
    assert len(modules) > 80
    alone = {
        "agent.__init__",
        "agent.__main__",
        "agent.rank",
    }  # rank.py runs as a file under the user's Python
    imports = "; ".join(f"import {name}" for name in modules if name not in alone)
    code = f"import sys; sys.path.insert(0, {str(pyz)!r}); {imports}"
    done = subprocess.run(
        [python, "-I", "-S", "-W", "error", "-c", code],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not TOO_OLD, reason="no Python older than 3.8 on this machine")
@pytest.mark.parametrize("old", TOO_OLD, ids=[path.split("/")[-3] for path in TOO_OLD])
def test_a_python_that_is_too_old_gets_a_sentence(pyz: Path, old: str) -> None:
    for command in (["version"], ["connect", "--nonce", "aa"], []):
        done = subprocess.run([old, str(pyz), *command], capture_output=True, check=False, text=True)
        assert done.returncode == 97
        assert done.stdout == ""
        assert done.stderr.startswith("encamp needs Python 3.8 or newer; ")
        assert done.stderr.count("\n") == 1
