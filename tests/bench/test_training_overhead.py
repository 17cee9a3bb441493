"""Training under encamp, with a viewer attached, against bare torchrun: the same script, in turns."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from agent_client import AgentHost, Connection

from agent import wire

pytestmark = [pytest.mark.bench, pytest.mark.torch, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("train_and_time.py")
RANKS, PAIRS, STEPS = 2, 7, 1500
FLOOR = 0.99


def test_steps_per_second_against_bare_torchrun(agent_host: AgentHost, tmp_path: Path) -> None:
    viewer = agent_host.connect()
    ratios = []
    for pair in range(PAIRS):
        ours, theirs = tmp_path / f"ours-{pair}", tmp_path / f"bare-{pair}"
        if pair % 2:  # neither is always the one that runs on the warmer machine
            under_encamp(viewer, f"pair-{pair}", ours)
            bare(theirs)
        else:
            bare(theirs)
            under_encamp(viewer, f"pair-{pair}", ours)
        ratios.append(float(ours.read_text()) / float(theirs.read_text()))
    median = statistics.median(ratios)
    print(f"\nsteps/s, encamp / bare torchrun: median {median:.3f} of {[round(r, 3) for r in ratios]}")
    assert median >= FLOOR


def under_encamp(viewer: Connection, run: str, out: Path) -> None:
    """Run the script as a run, reading all that the agent says meanwhile."""
    spec = wire.LaunchSpec(
        run, run, "bench", "ddp", "script", str(SCRIPT), (str(out), str(STEPS)), "", RANKS, sys.executable
    )
    viewer.request("launch", timeout=60, spec=wire.to_json(spec), actor="bench")
    end = viewer.expect(wire.Run, lambda info: info.run == run and info.state in wire.END_STATES, 120)
    assert end.state == "finished", end.reason


def bare(out: Path) -> None:
    """Run the script as one would by hand."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS),
        str(SCRIPT), str(out), str(STEPS),
    ]  # fmt: skip
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
