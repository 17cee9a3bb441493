"""The scripts for a machine with a GPU, on this one: the same way with a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "gpu"


def run(script: str, tmp_path: Path) -> dict[str, Any]:
    """What the script says last, on the CPU."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "ENCAMP_HOME": str(tmp_path)}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "ENCAMP_RUN_DIR"):
        env.pop(name, None)
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), "--cpu"],
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_the_gpt_that_is_compared_with_a_loop_by_hand(tmp_path: Path) -> None:
    told = run("gpt124m.py", tmp_path)
    assert (told["micro_batch"], told["accumulation"], told["global_batch"]) == (4, 2, 8)
    assert told["parameters"] == 2 * 64 * 64 * 12 + 503 * 64 + 32 * 64 + 5 * 64
    assert min(told["tokens_per_second"].values()) > 0
    assert 0.1 < told["ratio"] < 10
    assert told["mfu"] == {"trainer": "unknown", "hand": "unknown"}


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_what_is_seen_of_a_run_that_hangs_in_a_collective(tmp_path: Path) -> None:
    told = run("nccl_stall.py", tmp_path)
    assert (told["verdict"], told["culprits"]) == ("collective-missing", [1])
    assert told["recorded"] and told["handlers"]["fr_trace_json"] > 0
    assert told["pending"] and "all_reduce" in told["pending"][0]
    assert any("all_reduce" in frame for frame in told["stack"])
    assert (told["gpu"], told["ras"]) == (None, "")
