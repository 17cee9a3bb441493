"""What the agent costs: the meter, and the daemon and supervisor of a run with two ranks themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_client import AgentHost

from agent import cost, process, wire

LIMIT_BYTES = 40 * 1024 * 1024
LIMIT_PERCENT = 1.0


def test_the_meter_adds_up_processes_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    ticks = {1: 50, 2: 7}
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(
        process,
        "stat",
        lambda pid: process.Stat(pid, "S", 1, ticks[pid], 1, 1000) if pid in ticks else None,
    )
    meter = cost.CostMeter()
    assert meter.read([1]) == wire.AgentCost(None, 1000)
    now, ticks = 101.0, {1: 51, 2: 700}
    assert meter.read([1, 2]) == wire.AgentCost(pytest.approx(1.0), 2000), "the second one has just come"
    now, ticks = 102.0, {2: 705}
    assert meter.read([1, 2]) == wire.AgentCost(pytest.approx(3.0), 1000)
    for _ in range(20):
        now += 1.0
        last = meter.read([2])
    assert last.cpu_percent == 0.0, "what was long ago does not count"


@pytest.mark.slow
def test_daemon_and_supervisor_of_two_ranks(host: AgentHost, capsys: pytest.CaptureFixture[str]) -> None:
    viewer = host.connect()
    host.launch(viewer, "run-a", "say=hello", "forever")
    viewer.until_run("run-a", "running")
    viewer.request("log_follow", run="run-a", attempt=1, stream="rank0", offset=0)
    pids = [viewer.hello.pid, host.supervisor("run-a") or 0]
    before, start = sum(map(_cpu_seconds, pids)), time.monotonic()
    while time.monotonic() - start < 6:
        viewer.message()
    percent = 100 * (sum(map(_cpu_seconds, pids)) - before) / (time.monotonic() - start)
    memory = sum(map(_proportional_bytes, pids))
    told = [message for message in viewer.seen if isinstance(message, wire.Sample)][-1].agent
    with capsys.disabled():
        print(
            f" {percent:.2f} % of a core, {memory / 2**20:.1f} MiB (RSS {told.rss_bytes / 2**20:.1f}) ",
            end="",
        )
    assert memory < LIMIT_BYTES
    assert told.rss_bytes < LIMIT_BYTES
    # A machine that is busy with other things makes every cycle longer: that much is not the agent's.
    assert percent < LIMIT_PERCENT * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def test_the_relay_costs_little_more_than_its_interpreter(one_host: AgentHost) -> None:
    """In CPU time, and against the same interpreter in the same seconds."""
    one_host.connect()
    bare = [one_host.python, "-I", "-S", "-c", ""]
    relay = one_host.command("connect", "--nonce", "aa")
    pairs = [(_child_cpu(bare, one_host), _child_cpu(relay, one_host)) for _ in range(5)]
    floor, cost_of_relay = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    assert cost_of_relay < 6 * floor, (floor, cost_of_relay)


def _child_cpu(command: list[str], host: AgentHost) -> float:
    code = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_utime + used.ru_stime)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        env=host.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def _cpu_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _proportional_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell the proportional set size")
