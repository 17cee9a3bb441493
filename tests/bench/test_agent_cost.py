"""What the agent takes of a host while it watches a run of two ranks once a second."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from agent_client import AgentHost

from agent import process, wire

pytestmark = [pytest.mark.bench, pytest.mark.torch, pytest.mark.timeout(180)]

WATCHED_SECONDS = 30.0
CPU_PERCENT = 1.0
MEMORY_BYTES = 40 * 1024 * 1024

SCRIPT = """
import time, torch
parameter = torch.nn.Parameter(torch.zeros(8))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for step in range(100_000):
    parameter.grad = torch.ones(8)
    optimizer.step()
    print("step", step, flush=True)
    time.sleep(0.05)
"""


def test_daemon_and_supervisor(agent_host: AgentHost, tmp_path: Path) -> None:
    script = tmp_path / "idle.py"
    script.write_text(SCRIPT)
    viewer = agent_host.connect()
    spec = wire.LaunchSpec("idle", "idle", "bench", "ddp", "script", str(script), (), "", 2, sys.executable)
    viewer.request("launch", timeout=60, spec=wire.to_json(spec), actor="bench")
    viewer.expect(wire.Ranks, lambda ranks: all((rank.step or 0) > 5 for rank in ranks.ranks), 60)
    supervisor = Path(agent_host.home, "runs/idle/attempts/1/supervisor.json")
    pids = [viewer.hello.pid, json.loads(supervisor.read_text())["pid"]]

    before, start, samples = ticks(pids), time.monotonic(), 0
    while time.monotonic() - start < WATCHED_SECONDS:
        viewer.expect(wire.Sample)
        samples += 1
    seconds = time.monotonic() - start
    percent = 100 * (ticks(pids) - before) / process.TICKS_PER_SECOND / seconds
    memory = sum(rss_bytes(pid) for pid in pids)
    print(
        f"\nagent: {percent:.2f} % of a core, {memory / 2**20:.1f} MiB, {samples} samples in {seconds:.0f} s"
    )
    assert samples >= 0.9 * seconds, "it samples at 1 Hz"
    assert percent < CPU_PERCENT
    assert memory < MEMORY_BYTES


def ticks(pids: list[int]) -> int:
    """Processor time of these processes, in clock ticks."""
    return sum(found.cpu_ticks for pid in pids if (found := process.stat(pid)))


def rss_bytes(pid: int) -> int:
    """Resident memory of one process, shared pages counted in full."""
    found = process.stat(pid)
    assert found is not None
    return found.rss_bytes
