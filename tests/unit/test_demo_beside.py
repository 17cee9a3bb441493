"""What the demo says to whoever waits for it, and to whoever wants to use it from another shell."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tui import demo, demo_waits
from tui.demo_run import DemoRun

TORCH = DemoRun("ddp", 2, "python3", ())


def session(*runs: Any) -> Any:
    return SimpleNamespace(
        name="demo-1", view=SimpleNamespace(runs={str(number): run for number, run in enumerate(runs)})
    )


def test_another_shell_sees_the_demos_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a folder's"
    folder.mkdir()
    monkeypatch.setattr(demo.tempfile, "tempdir", str(folder))
    with demo._own_folders():
        here = [os.environ[name] for name in ("ENCAMP_CONFIG_DIR", "ENCAMP_STATE_DIR")]
        script = f'{demo._enter()}; echo "$ENCAMP_CONFIG_DIR"; echo "$ENCAMP_STATE_DIR"; echo "$HOME"'
        said = subprocess.run(
            ["sh", "-c", script], env={"HOME": "/home/me"}, capture_output=True, text=True, check=True
        )
        assert said.stdout.splitlines() == [*here, "/home/me"]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ((), "demo-1 gets the trainer's code, and looks for the Python of the ranks"),
        ((SimpleNamespace(ranks={0: 0}),), "the launcher starts 2 ranks, of which 1 are there"),
        (
            (SimpleNamespace(ranks={0: 0, 1: 0}, training=None),),
            "its ranks import torch, and wait until all have done so",
        ),
        ((SimpleNamespace(ranks={0: 0, 1: 0}, training="ddp"),), "its ranks take their first step"),
    ],
)
def test_it_says_what_it_waits_for(runs: tuple[Any, ...], said: str) -> None:
    assert demo_waits.phase(session(*runs), TORCH) == said


async def test_it_says_it_late_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATIENCE_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(demo_waits, name, 0.0)
    heard: list[str] = []
    with demo_waits.told(session(), TORCH, lambda: 7.0, heard.append):
        for _ in range(10):
            await asyncio.sleep(0)
    assert [text.split(":")[0] for text in heard] == ["after 7 s"]
