"""What checkpoints cost: how long training waits for one, and how long a run takes to go on from one."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.torch, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("checkpoint_pair.py")
MODEL = ("--size", "small", "--sequence-length", "64", "--micro-batch", "1")
"""11 million parameters: a checkpoint has 130 MB."""
RANKS = 2
TURNS = 9
STARTS = 3
HELD_UP = 0.3
RESUMED = 1.5


def torchrun(folder: Path, *words: str, **environment: str) -> str:
    """Run a script or a module on the ranks to a good end. Returns what it said."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    # The text that is trained on is read but once.
    env = os.environ | {"OMP_NUM_THREADS": "1", "ENCAMP_HOME": str(folder / "home")} | environment
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, env=env, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_training_is_hardly_held_up(tmp_path: Path) -> None:
    words = (str(SCRIPT), str(TURNS), str(tmp_path / "checkpoints"), *MODEL)
    told = json.loads(torchrun(tmp_path, *words).splitlines()[-1])
    waits, beside = told["wait"], told["beside"]
    ratios = [ours / all_of_it for ours, all_of_it in zip(beside["held_up"], waits["held_up"], strict=True)]
    median = statistics.median
    print(
        f"\ntraining held up, beside / waiting: median {median(ratios):.2f} of {TURNS} "
        f"({median(beside['held_up']):.2f} s and {median(waits['held_up']):.2f} s); counts after "
        f"{median(beside['took']):.2f} s; a step meanwhile takes {median(beside['steps']):.2f} s "
        f"and else {median(waits['steps']):.2f} s"
    )
    assert median(ratios) <= HELD_UP


def seconds_to_a_step(folder: Path, steps: int) -> float:
    """Train up to step number `steps`, and return when the first one of this run was done."""
    progress = folder / "progress.jsonl"
    progress.unlink(missing_ok=True)
    words = ("-m", "trainer", *MODEL, "--steps", str(steps), "--checkpoint-dir", str(folder / "checkpoints"))
    began = time.time()
    torchrun(folder.parent, *words, ENCAMP_RANK_DIR=str(folder))
    told = [json.loads(line) for line in progress.read_text().splitlines()]
    first = [entry for entry in told if "loss" in entry]
    assert first[0]["step"] == steps
    return float(first[0]["time"] - began)


def test_going_on_takes_little_longer_than_starting(tmp_path: Path) -> None:
    ratios, times = [], []
    for turn in range(STARTS + 1):
        folder = tmp_path / str(turn)
        folder.mkdir()
        cold, resumed = seconds_to_a_step(folder, 1), seconds_to_a_step(folder, 2)
        if turn:  # the first reads everything from the disk
            ratios.append(resumed / cold)
            times.append(resumed)
    print(
        f"\nfirst step of a resumed run / of a new one: median {statistics.median(ratios):.2f} of {STARTS} "
        f"({statistics.median(times):.1f} s)"
    )
    assert statistics.median(ratios) <= RESUMED
