"""The agent's command line, from the archive and from the source tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent import instance
from agent.__main__ import main


@pytest.mark.parametrize("arguments", [[], ["dance"], ["--help"]])
def test_what_is_not_known_shows_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("usage: agent.pyz connect --nonce HEX")


def test_an_old_interpreter_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 7, 16, "final", 0))
    assert main(["version"]) == 97
    assert capsys.readouterr().err == f"encamp needs Python 3.8 or newer; {sys.executable} is 3.7.16\n"


def test_the_source_tree_runs_itself() -> None:
    command = instance.agent_command("version")
    assert command[1:3] == ["-I", "-S"]
    done = subprocess.run(command, capture_output=True, check=False, text=True, cwd="/")
    assert done.stdout.split()[1] == "source", done.stderr


def test_an_archive_is_believed_by_its_name_and_hashed_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / ("ab" * 32 + ".pyz")
    other = tmp_path / "agent.pyz"
    for path in (named, other):
        path.write_bytes(b"content")
    monkeypatch.setattr(instance, "code_root", lambda: str(named))
    assert instance.build_id() == "ab" * 32
    monkeypatch.setattr(instance, "code_root", lambda: str(other))
    assert instance.build_id() == "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
    assert instance.agent_command("nvml")[3:] == [str(other), "nvml"]


def test_the_relay_imports_nothing_heavy() -> None:
    code = (
        "import os, sys; before = set(sys.modules); sys.path.insert(0, sys.argv[1]); import agent.connect;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, instance.code_root()],
        capture_output=True,
        text=True,
        check=True,
    )
    ours = {name for name in done.stdout.split() if name.startswith("agent")}
    assert ours == {"agent", "agent.connect", "agent.instance", "agent.paths", "agent.version"}
    assert set(done.stdout.split()) - ours <= {"__future__", "_socket", "fcntl", "select", "time"}
