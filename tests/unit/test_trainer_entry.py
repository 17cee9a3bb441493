"""`python -m trainer` before it trains: help, wrong options, and interpreters that will not do."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trainer
from trainer.__main__ import main
from trainer.config import Config, parse

ROOT = Path(trainer.__file__).parent.parent


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=env, timeout=60, check=False
    )


def test_help_answers_without_loading_torch() -> None:
    done = python("-X", "importtime", "-m", "trainer", "--help")
    assert done.returncode == 0
    assert "--micro-batch N" in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "trainer.config" in loaded
    assert "torch" not in loaded
    assert "numpy" not in loaded


def test_a_python_without_torch_is_told() -> None:
    done = python("-S", "-m", "trainer")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"trainer: error: {sys.executable} has no torch; use a Python that can import it\n"


def test_an_old_python_is_told() -> None:
    code = "import runpy, sys; sys.version_info = (3, 8, 1); runpy.run_module('trainer', run_name='__main__')"
    done = python("-c", code)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("trainer: error: needs Python 3.10 or newer, this is ")
    # What has run until then is valid there.
    for name in ("__init__.py", "__main__.py"):
        ast.parse((ROOT / "trainer" / name).read_text().partition("from .config")[0], feature_version=(3, 8))


def test_faults_of_the_options_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--steps", "0"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "trainer: error: argument --steps: must be a whole number of at least 1, not '0'"
    )
    with pytest.raises(SystemExit):
        main(["--steps", "2147483648"])
    assert "a whole number from 1 to 2147483647, not '2147483648'" in capsys.readouterr().err


@pytest.mark.usefixtures("train")
def test_faults_found_later_are_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["--task", "gtp"]) == "trainer: error: --task gtp: no such task; did you mean gpt?"
    said = main(["--strategy", "fsdpp"])
    assert said == "trainer: error: --strategy fsdpp: no such strategy; did you mean fsdp or fsdp+tp or hsdp?"
    monkeypatch.setenv("RANK", "0")
    assert main([]) == (
        "trainer: error: RANK in the environment but not LOCAL_RANK, WORLD_SIZE: start it with torchrun"
    )


@pytest.mark.usefixtures("train")
def test_gpus_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = main(["--device", "cuda"])
    assert said == f"trainer: error: --device cuda: torch {torch.__version__} sees no GPU here"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    said = main([])
    assert said == "trainer: error: local rank 3 has no GPU: this host shows 2; start at most 2 ranks on it"


@pytest.mark.parametrize("words", [["--step", "3"], ["--steps", "nan"], ["--precision", "fp8"], ["extra"]])
def test_unknown_and_abbreviated_options(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(words)
    assert caught.value.code == 2
    assert words[-1] in capsys.readouterr().err


def test_defaults_are_those_of_the_dataclass() -> None:
    assert parse([]) == Config()
