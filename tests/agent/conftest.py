"""Fixtures of the agent's tests: a home of its own for each test, and every Python of this machine."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_client import AgentHost
from attempts import SCRIPTS, Lab

OLDEST = (3, 8)


@functools.lru_cache(maxsize=1)
def pythons() -> tuple[str, ...]:
    """One interpreter of each version from 3.8 on, as real paths; ours among them."""
    found = {"{}.{}".format(*sys.version_info): sys.executable}
    installed = sorted(Path.home().glob(".pyenv/versions/*/bin/python")) + sorted(
        Path("/opt").glob("python/*/bin/python3")
    )
    named = [shutil.which(f"python3.{minor}") for minor in range(8, 20)]
    for path in [*map(str, installed), "/usr/local/bin/python3", *named]:
        if path is None or not os.access(path, os.X_OK):
            continue
        ask = [path, "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(ask, capture_output=True, text=True, check=False, timeout=30)
        version = answer.stdout.strip()
        if answer.returncode == 0 and tuple(map(int, version.split("."))) >= OLDEST:
            found.setdefault(version, path)
    return tuple(found[version] for version in sorted(found, key=lambda text: int(text.split(".")[1])))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "python" in metafunc.fixturenames:
        metafunc.parametrize("python", pythons(), ids=_version_in_path)


def _version_in_path(path: str) -> str:
    return path if path == sys.executable else next((p for p in path.split("/") if p[:2] == "3."), path)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty ENCAMP_HOME, set in the environment as well."""
    path = tmp_path / "encamp"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("ENCAMP_HOME", str(path))
    return str(path)


@pytest.fixture(scope="session")
def scripts() -> Path:
    """The folder of the plain user scripts."""
    return Path(__file__).parent.parent / "scripts"


@pytest.fixture
def lab(home: str, tmp_path: Path) -> Iterator[Lab]:
    """Makes attempts whose supervisors, launchers and ranks run under the Python of the tests."""
    laboratory = Lab(home, tmp_path)
    yield laboratory
    laboratory.close()


@pytest.fixture
def fake_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives every Python that is started from here a `torch` whose torchrun is tests/scripts/launcher.py."""
    folder = tmp_path / "with-torch" / "torch"
    (folder / "distributed").mkdir(parents=True)
    (folder / "__init__.py").write_text("from . import version\n__version__ = version.__version__\n")
    (folder / "version.py").write_text("__version__ = '2.13.0+fake'\ncuda = None\n")
    (folder / "distributed" / "__init__.py").write_text("")
    (folder / "distributed" / "run.py").write_text(
        "import os, runpy, sys\n"
        "words = sys.argv[1:]\n"
        "program = next(index for index, word in enumerate(words) if word.endswith('rank.py'))\n"
        "nproc = int(words[words.index('--nproc-per-node') + 1])\n"
        "if '--node-rank' in words:\n"
        "    os.environ['FIRST_RANK'] = str(nproc * int(words[words.index('--node-rank') + 1]))\n"
        f"sys.argv = ['launcher.py', str(nproc), *words[program:]]\n"
        f"runpy.run_path({str(SCRIPTS / 'launcher.py')!r}, run_name='__main__')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    return folder


@pytest.fixture(params=(pythons()[0], pythons()[-1]), ids=("oldest", "newest"))
def host(request: pytest.FixtureRequest, tmp_path: Path, fake_torch: Path) -> Iterator[AgentHost]:
    """A host with an agent, once under the oldest Python and once under the newest."""
    host = AgentHost(str(tmp_path / "home"), request.param)
    yield host
    host.close()


@pytest.fixture
def one_host(tmp_path: Path, fake_torch: Path) -> Iterator[AgentHost]:
    """A host with an agent, for what does not depend on the Python."""
    host = AgentHost(str(tmp_path / "home"))
    yield host
    host.close()
