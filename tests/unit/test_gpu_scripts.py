"""The scripts for a machine with a GPU, on this one: the same way with a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "gpu" / "gpt124m.py"


def test_the_gpt_that_is_compared_with_a_loop_by_hand(tmp_path: Path) -> None:
    env = os.environ | {"OMP_NUM_THREADS": "1", "ENCAMP_HOME": str(tmp_path)}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "ENCAMP_RUN_DIR"):
        env.pop(name, None)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--cpu"],
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["micro_batch"], told["accumulation"], told["global_batch"]) == (4, 2, 8)
    assert told["parameters"] == 2 * 64 * 64 * 12 + 503 * 64 + 32 * 64 + 5 * 64
    assert min(told["tokens_per_second"].values()) > 0
    assert 0.1 < told["ratio"] < 10
    assert told["mfu"] == {"trainer": "unknown", "hand": "unknown"}
