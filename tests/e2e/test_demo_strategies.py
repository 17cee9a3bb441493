"""The demo under each strategy: it trains for real, and says beforehand what a strategy lacks."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiles.keys import STRATEGIES
from tui import demo_run
from tui.__main__ import main
from tui.fleet.errors import EncampError

SECONDS = 300
"""How long one may take, on a machine that does other things as well."""

HEAVY = {"horovod": "ENCAMP_TESTS_HOROVOD", "tensorflow": "ENCAMP_TESTS_TENSORFLOW"}
"""Package -> the variable that names a Python with it, where one was prepared."""

QUICK = ("pp",)


def case(strategy: str) -> object:
    package = demo_run.packages(strategy)[-1]
    marks = [pytest.mark.torch, pytest.mark.timeout(SECONDS + 30)]
    if package in HEAVY:
        marks += [pytest.mark.heavy]
    elif strategy not in QUICK:
        marks += [pytest.mark.slow]
    return pytest.param(strategy, marks=marks)


def python_for(strategy: str) -> str:
    """A Python that has what the strategy needs, or skip."""
    package = demo_run.packages(strategy)[-1]
    if package in HEAVY:
        path = os.environ.get(HEAVY[package], "")
        if not path:
            pytest.skip(f"{HEAVY[package]} names no Python with {package}")
        return path
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return sys.executable


@pytest.mark.parametrize("strategy", [case(strategy) for strategy in STRATEGIES])
def test_the_demo_trains_under(strategy: str, tmp_path: Path) -> None:
    python = python_for(strategy)
    words = ["--headless", "--hosts", "1", "--steps", "20", "--json", "--strategy", strategy]
    done = subprocess.run(
        [sys.executable, "-m", "tui", "demo", *words, "--python", python],
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["run"]["state"], result["run"]["strategy"]) == ("finished", strategy)
    reporting = [rank for rank in result["ranks"] if rank["loss_first"] is not None]
    # Beside the workers there is a chief, which reports too, and a parameter server, which does not.
    more = 1 if strategy == "tf-parameter-server" else 0
    assert len(reporting) == demo_run.plan(strategy, python).ranks + more
    for rank in reporting:
        assert rank["step"] == 20
        assert rank["loss_last"] < rank["loss_first"] - 0.1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ppp", "Did you mean pp?"),
        ("FSPD", "Did you mean fsdp"),
        ("horses-for-courses", "There are ddp, fsdp, "),
    ],
)
def test_a_strategy_that_there_is_not(name: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--headless", "--strategy", name]) == 2
    captured = capsys.readouterr()
    assert f"--strategy {name}: no such strategy." in captured.err
    assert hint in captured.err
    assert "starting" not in captured.err


def python(folder: Path, *words: str) -> str:
    """A program that answers the question for packages with these words."""
    path = folder / "python"
    path.write_text("#!/bin/sh\necho " + " ".join(words) + "\n")
    path.chmod(0o755)
    return str(path)


def test_a_python_is_asked_for_what_the_strategy_needs(tmp_path: Path) -> None:
    found = demo_run.plan("ddp", python(tmp_path, "has", "torch"))
    assert found.python == f"{tmp_path}/python"
    assert f'run.python="{tmp_path}/python"' in found.settings
    with pytest.raises(EncampError, match=r"ddp needs torch, and .*/python lacks it") as caught:
        demo_run.plan("ddp", python(tmp_path, "has"))
    assert caught.value.hint == f"Install it with: {tmp_path}/python -m pip install 'torch>=2.4' numpy"
    with pytest.raises(EncampError, match="does not run as a Python"):
        demo_run.plan("ddp", python(tmp_path, "hello"))
    with pytest.raises(EncampError, match="there is no such program"):
        demo_run.plan("ddp", str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("strategy", "package", "hint"),
    [
        ("zero2", "deepspeed", "-m pip install 'deepspeed>=0.19.5'"),
        ("horovod", "horovod", "Then: encamp demo --strategy horovod --python PATH"),
        ("tf-mirrored", "tensorflow", "Then: encamp demo --strategy tf-mirrored --python ~/tf/bin/python"),
    ],
)
def test_what_no_python_here_has_is_said_with_the_way_to_it(
    strategy: str, package: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_run, "STRATEGIES", (strategy,))
    monkeypatch.setattr(demo_run.importlib.util, "find_spec", lambda name: None if name == package else name)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EncampError, match=f"needs {package}, and no Python here has it") as caught:
        demo_run.plan(strategy)
    assert hint in caught.value.hint
    # One that has it is found by its usual name.
    answer = ("has", *demo_run.packages(strategy))
    Path(python(tmp_path, *answer)).rename(tmp_path / "python3")
    assert demo_run.plan(strategy).python == f"{tmp_path}/python3"


def test_a_strategy_gets_the_ranks_that_it_needs() -> None:
    ranks = {name: demo_run.plan(name).ranks for name in ("ddp", "pp", "hsdp", "fsdp+tp", "dp")}
    assert ranks == {"ddp": 2, "pp": 2, "hsdp": 4, "fsdp+tp": 4, "dp": 1}
