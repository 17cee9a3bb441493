"""What the fleet screen costs with 200 hosts of 8 GPUs that report once a second, on a terminal of 200x50."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pseudo_terminal import run_on_a_terminal

HOSTS, GPUS, SECONDS = 200, 8, 8


def measure(out: Path, what: str) -> dict[str, float]:
    """Run `fleet_app.py` and return what it measured."""
    written = run_on_a_terminal("fleet_app.py", out, HOSTS, GPUS, SECONDS, what, columns=200)
    result: dict[str, float] = json.loads(out.read_text())
    result["bytes_per_second"] = written / SECONDS
    return result


@pytest.mark.bench
def test_two_hundred_hosts(tmp_path: Path) -> None:
    ours = measure(tmp_path / "ours.json", "table")
    peer = measure(tmp_path / "peer.json", "peer")
    print(json.dumps({"ours": ours, "DataTable": peer}, indent=1))
    assert ours["cpu_share"] <= 0.30
    assert ours["frame_p99"] < 0.050
    assert ours["frames_per_second"] > 0.5
    assert ours["cpu_share"] < peer["cpu_share"]
    assert ours["frame_p99"] < peer["frame_median"] / 3
